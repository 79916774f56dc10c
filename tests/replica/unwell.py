#!/usr/bin/env python3
"""Stands in front of a server and answers one request in so many by 503, before or behind its effect.

usage: unwell.py PORT SERVER_PORT ONE_IN [DELAY [SEED]]     ONE_IN 0: none; DELAY of each GET, in ms
"""

import http.client
import http.server
import random
import sys
import threading
import time

PORT, SERVER, ONE_IN = (int(word) for word in sys.argv[1:4])
DELAY = int(sys.argv[4]) / 1000 if len(sys.argv) > 4 else 0
CHANCE = random.Random(int(sys.argv[5]) if len(sys.argv) > 5 else 1)
LOCK = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with LOCK:
            unwell, does_it = ONE_IN and CHANCE.randrange(ONE_IN) == 0, CHANCE.randrange(2) == 0
        if self.command == "GET":
            time.sleep(DELAY)
        if unwell and not does_it:
            return self.refuse()
        server = http.client.HTTPConnection("127.0.0.1", SERVER)
        # The host's name is part of what is signed.
        server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            server.putheader(name, value)
        server.endheaders(body)
        answer = server.getresponse()
        content = answer.read()
        server.close()
        if unwell:
            return self.refuse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else len(content)
        self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        self.wfile.write(content)

    def refuse(self):
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    # Whoever fetches opens many connections at once. With five, which is the default, some would wait for seconds.
    request_queue_size = 128


Server(("127.0.0.1", PORT), Handler).serve_forever()
