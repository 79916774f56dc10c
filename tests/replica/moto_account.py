#!/usr/bin/env python3
"""Makes a user with a key and a bucket on a moto server that asks for credentials, and prints key and secret.

usage: moto_account.py ENDPOINT BUCKET

The first three calls need no credentials (INITIAL_NO_AUTH_ACTION_COUNT=3 in the server's environment).
"""

import json
import sys

import boto3


def main():
    endpoint, bucket = sys.argv[1:]
    common = {"endpoint_url": endpoint, "region_name": "us-east-1"}
    iam = boto3.client("iam", aws_access_key_id="x", aws_secret_access_key="x", **common)
    iam.create_user(UserName="tests")
    key = iam.create_access_key(UserName="tests")["AccessKey"]
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    iam.put_user_policy(UserName="tests", PolicyName="all", PolicyDocument=json.dumps(everything))
    identity = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    boto3.client("s3", **identity, **common).create_bucket(Bucket=bucket)
    print(key["AccessKeyId"], key["SecretAccessKey"])


main()
