"""Servers that speak what vLLM and SGLang do, and misbehave when they are told to.

vLLM: `entrypoints/serve/rlhf/api_router.py` (1ace43ed), with the routes that begin and
finish an update (main, mid-2026). SGLang: `srt/entrypoints/http_server.py` (mid-2026).
"""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

__all__ = ["serving", "sglang", "vllm"]


class Server:
    """What a server was asked, and at which route it fails, is late, or never ends."""

    def __init__(self, answer):
        self.answer, self.asked, self.bad = answer, [], {}
        self.paused, self.version, self.hangs = False, "", threading.Event()


def vllm(server, path, query, body):
    """Return the answer of vLLM's route, and its status."""
    match path:
        case "/pause":
            assert query in ("mode=abort", "mode=wait", "mode=keep")
            server.paused = True
            return 200, {"status": "paused"}
        case "/resume":
            server.paused = False
            return 200, {"status": "resumed"}
        case "/init_weight_transfer_engine":
            if "init_info" not in body:
                return 400, {"detail": "Missing 'init_info' in request body"}
            return 200, {"message": "Weight transfer initialized"}
        case "/start_weight_update":
            return 200, {"message": "Weight update started"}
        case "/update_weights":
            if "update_info" not in body:
                return 400, {"detail": "Missing 'update_info' in request body"}
            return 200, {"message": "Weights updated"}
        case "/finish_weight_update":
            server.version = body.get("weight_version", "")
            return 200, {"message": "Weight update finished"}
    return 404, {"detail": "Not Found"}


def sglang(server, path, query, body):
    """Return the answer of SGLang's route, and its status."""
    if path == "/pause_generation":
        assert body["mode"] in ("abort", "retract", "in_place")
        server.paused = True
        return 200, {"message": "Generation paused successfully.", "status": "ok"}
    if path == "/continue_generation":
        server.paused = False
        return 200, {"message": "Generation continued successfully.", "status": "ok"}
    if path.startswith("/update_weights_from_"):
        wanted = {"disk": "model_path", "tensor": "serialized_named_tensors",
                  "distributed": "names", "ipc": "zmq_handles"}  # fmt: skip
        if wanted[path.rpartition("_")[2]] not in body:
            return 400, {"success": False, "message": "a field is missing"}
        server.version = body["weight_version"]
        return 200, {"success": True, "message": "Succeeded to update model weights."}
    return 404, {"detail": "Not Found"}


@contextlib.contextmanager
def serving(answer):
    """Yield a server, and its address."""
    server = Server(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            split = urlsplit(self.path)
            data = self.rfile.read(int(self.headers["Content-Length"]))
            body = json.loads(data)
            server.asked.append((split.path, body))
            bad = server.bad.get(split.path)
            if bad == "hangs":  # and does nothing late: who asked has gone on
                server.hangs.wait(20)
            if bad in ("hangs", "dies"):
                self.connection.close()
                return
            status, said = answer(server, split.path, split.query, body)
            if bad == "fails":
                status, said = 500, {"error": "a worker has died"}
            text = b"<html>" if bad == "babbles" else json.dumps(said).encode()
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        def log_message(self, *_):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{made.server_port}"
    finally:
        server.hangs.set()
        made.shutdown()
        thread.join()
        made.server_close()
