#!/usr/bin/env python3
"""Serves moto on the loopback, one request at a time.

usage: moto_alone.py PORT

With threads, as moto_server has them, two creations of one name may both succeed: moto looks first, and stores then.
The probe of a replica refuses such a store.
"""

import sys

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
