#!/usr/bin/env python3
"""Changes one object, with the credentials of the environment.

usage: object.py flip BUCKET NAME OFFSET    one bit of one byte
       object.py names BUCKET PREFIX        prints the names
       object.py copy BUCKET NAME OTHER     OTHER is what NAME is
       object.py put BUCKET NAME            a few bytes
       object.py make BUCKET                the bucket
"""

import os
import sys

import boto3


def main():
    what, bucket, name = [*sys.argv[1:4], ""][:3]
    store = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name=os.environ["AWS_REGION"])
    if what == "names":
        pages = store.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=name)
        print("\n".join(each["Key"] for page in pages for each in page.get("Contents", [])))
        return
    if what == "make":
        store.create_bucket(Bucket=bucket)
        return
    if what == "put":
        store.put_object(Bucket=bucket, Key=name, Body=b"nothing of ours")
        return
    content = bytearray(store.get_object(Bucket=bucket, Key=name)["Body"].read())
    if what == "copy":
        name = sys.argv[4]
    else:
        content[int(sys.argv[4])] ^= 1 if what == "flip" else 0
    store.put_object(Bucket=bucket, Key=name, Body=bytes(content))


main()
