"""A small W&B server, which can refuse and freeze."""

import gzip
import http.server
import json
import re
import threading
import time


class Handler(http.server.BaseHTTPRequestHandler):
    """The part of W&B's API that a run needs to start, or none of it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append((self.path, body.decode()))
        while self.server.frozen.is_set():
            time.sleep(0.05)
        answer = {"errors": [{"message": "user is not logged in"}]} if self.server.status != 200 else self.answer(body)
        text = json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST

    def answer(self, body: bytes) -> dict:
        request = json.loads(body) if body else {}
        if self.path.endswith("/file_stream"):
            if sent := request.get("files", {}).get("wandb-history.jsonl"):
                self.server.history[sent["offset"] :] = sent["content"]
        elif self.path == "/graphql":
            name = re.search(r"(?:query|mutation)\s+(\w+)", request["query"]).group(1)
            bucket = self.bucket(request.get("variables", {}).get("name"))
            if name == "UpsertBucket":
                return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
            if name == "RunResumeStatus":
                return {"data": {"model": {"name": "cmkernel", "entity": {"name": "me"}, "bucket": bucket}}}
            if name == "Viewer":
                return {"data": {"viewer": {"id": "dg==", "entity": "me", "username": "me", "teams": {"edges": []}}}}
            return {"errors": [{"message": "not known here"}]}
        return {}

    def bucket(self, name: str) -> dict:
        history = self.server.history
        return {
            "id": "aWQ=",
            "name": name,
            "displayName": "run",
            "config": "{}",
            "project": {"id": "cA==", "name": "cmkernel", "entity": {"id": "ZQ==", "name": "me"}},
            "summaryMetrics": "{}",
            "historyLineCount": len(history),
            "historyTail": json.dumps(history[-1:]),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "eventsTail": "[]",
            "tags": [],
            "wandbConfig": json.dumps({"t": 1}),
        }

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = status
        self.frozen = threading.Event()
        self.requests: list[tuple[str, str]] = []
        self.history: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """A client that gave up is what these tests are about."""
