"""A small object store with S3's interface, for tests: it checks who asks, and fails.

Signatures are checked from the documentation of AWS Signature Version 4, from what came
over the socket: nothing of the client is used.
"""

import hashlib
import hmac
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME, SECRET, REGION = (
    "AKIDEXAMPLE",
    "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "eu-north-1",
)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        return

    def _sign(self, body):
        said = self.headers.get("Authorization", "")
        kind, _, rest = said.partition(" ")
        fields = dict(part.strip().split("=", 1) for part in rest.split(","))
        who, day, region, service, end = fields["Credential"].split("/")
        if (kind, who, region, service, end) != (
            "AWS4-HMAC-SHA256", NAME, REGION, "s3", "aws4_request",
        ):  # fmt: skip
            return "InvalidAccessKeyId"
        if self.headers["x-amz-content-sha256"] != hashlib.sha256(body).hexdigest():
            return "XAmzContentSHA256Mismatch"
        path, _, query = self.path.partition("?")
        pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
        quoted = "&".join(
            f"{urllib.parse.quote(n, safe='-_.~')}={urllib.parse.quote(v, safe='-_.~')}"
            for n, v in pairs
        )
        names = fields["SignedHeaders"].split(";")
        assert "host" in names
        lines = [f"{n}:{self.headers[n].strip()}" for n in names]
        asked = [self.command, path, quoted, *lines, "", ";".join(names),
                 self.headers["x-amz-content-sha256"]]  # fmt: skip
        scope = "/".join((day, region, service, end))
        text = "\n".join(
            ["AWS4-HMAC-SHA256", self.headers["x-amz-date"], scope,
             hashlib.sha256("\n".join(asked).encode()).hexdigest()]
        )  # fmt: skip
        key = ("AWS4" + SECRET).encode()
        for word in (day, region, service, end):
            key = hmac.new(key, word.encode(), hashlib.sha256).digest()
        want = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        return "" if want == fields["Signature"] else "SignatureDoesNotMatch"

    def _say(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self):
        store = self.server.store
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else b""
        path = urllib.parse.unquote(self.path.partition("?")[0])
        store.seen.append((self.command, path))
        how = store.fault(self.command, path)
        if how == "hang up":
            self.close_connection = True
            return
        if isinstance(how, int):
            self._say(how, b"<Error><Code>Fault</Code></Error>")
            return
        if wrong := self._sign(body):
            self._say(403, f"<Error><Code>{wrong}</Code></Error>".encode())
            return
        bucket, _, key = path.strip("/").partition("/")
        if bucket != store.bucket:
            self._say(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        elif self.command == "PUT":
            kept = {n: v for n, v in self.headers.items() if n.startswith("x-amz-meta")}
            with store.lock:
                store.objects[key] = body, kept
            self._say(200)
        elif self.command == "DELETE":
            with store.lock:
                store.objects.pop(key, None)
            self._say(204)
        elif not key:
            self._list(store)
        elif key not in store.objects:
            self._say(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._give(*store.objects[key], how)

    do_GET = do_PUT = do_DELETE = _answer  # noqa: N815

    def _give(self, data, kept, how):
        status = 200
        if asked := self.headers.get("Range"):
            first, last = asked.removeprefix("bytes=").split("-")
            data, status = data[int(first) : int(last) + 1], 206
        if how == "cut short":
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        self._say(status, data, kept.items())

    def _list(self, store):
        query = dict(urllib.parse.parse_qsl(self.path.partition("?")[2]))
        begin = int(query.get("continuation-token", 0))
        names = sorted(k for k in store.objects if k.startswith(query["prefix"]))
        page = names[begin : begin + store.page]
        more = begin + store.page < len(names)
        token = f"<NextContinuationToken>{begin + store.page}</NextContinuationToken>"
        keys = "".join(f"<Contents><Key>{k}</Key></Contents>" for k in page)
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        self._say(
            200,
            f'<ListBucketResult xmlns="{space}">{keys}{token * more}'
            "</ListBucketResult>".encode(),
        )


class ObjectServer:
    """`faults` are calls (method, path) -> a status, "hang up", "cut short" or None."""

    def __init__(self, bucket="bucket", page=3):
        self.bucket, self.page = bucket, page
        self.objects, self.faults, self.seen = {}, [], []
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads, self._server.store = True, self
        self.url = f"http://127.0.0.1:{self._server.server_port}/{bucket}/some/prefix"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def fault(self, method, path):
        with self.lock:
            return next((how for f in self.faults if (how := f(method, path))), None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
