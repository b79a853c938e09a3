"""A real S3 server on loopback: moto's, which keeps objects in memory."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import boto3
import requests
from moto.server import ThreadedMotoServer
from pyarrow import fs

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "the-secret-key", "AWS_DEFAULT_REGION": "us-east-1"}
BUCKET = "bucket"


class Store:
    """A server with a bucket, and its objects by path."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = boto3.client("s3", endpoint_url=f"http://{address}")
        self.query = f"?scheme=http&endpoint_override={address}"

    def uri(self, path: str, bucket: str = BUCKET) -> str:
        return f"s3://{bucket}/{path}{self.query}"

    def names(self, folder: str) -> list[str]:
        system, _ = fs.FileSystem.from_uri(self.uri(""))
        found = system.get_file_info(fs.FileSelector(f"{BUCKET}/{folder}", recursive=True, allow_not_found=True))
        return sorted(each.path.removeprefix(f"{BUCKET}/{folder}/") for each in found if each.is_file)

    def get(self, path: str) -> bytes:
        return self.client.get_object(Bucket=BUCKET, Key=path)["Body"].read()

    def put(self, path: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=path, Body=content)

    def delete(self, path: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=path)

    def contents(self, folder: str) -> dict[str, bytes]:
        return {name: self.get(f"{folder}/{name}") for name in self.names(folder)}

    @contextmanager
    def checking_keys(self) -> Iterator[tuple[str, str]]:
        """Let only the user in whose keys are yielded, and who may do nothing but list and read."""
        users = boto3.client("iam", endpoint_url=f"http://{self.address}")
        users.create_user(UserName="reader")
        allowed = {"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        users.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
        keys = users.create_access_key(UserName="reader")["AccessKey"]
        requests.post(f"http://{self.address}/moto-api/reset-auth", data=b"0", timeout=10)
        try:
            yield keys["AccessKeyId"], keys["SecretAccessKey"]
        finally:
            requests.post(f"http://{self.address}/moto-api/reset-auth", data=b"inf", timeout=10)


@contextmanager
def serving() -> Iterator[Store]:
    """Yield a server that runs in a thread, with its keys in the environment."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with patch.dict(os.environ, KEYS | {"AWS_EC2_METADATA_DISABLED": "true"}):
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        try:
            store = Store(":".join(map(str, server.get_host_and_port())))
            store.client.create_bucket(Bucket=BUCKET)
            yield store
        finally:
            server.stop()
