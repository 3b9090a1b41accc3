"""A real browser without a window, driven by its DevTools protocol over a websocket."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path
from urllib.request import urlopen

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--hide-scrollbars", "--force-device-scale-factor=1", "--mute-audio"),
    "--remote-debugging-port=0",
)
STARTS_S = 60.0


def executable():
    """Return the browser of this machine, or None."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class WebSocket:
    """Enough of RFC 6455 for one peer that is well behaved."""

    def __init__(self, host, port, path):
        self._socket = socket.create_connection((host, port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._file = self._socket.makefile("rb")
        assert b"101" in self._file.readline()
        while self._file.readline().strip():
            pass

    def send(self, text):
        raw, mask = text.encode(), os.urandom(4)
        size = len(raw)
        head = b"\x81" + (
            bytes([0x80 | size])
            if size < 126
            else struct.pack(">BH", 0xFE, size)
            if size < 1 << 16
            else struct.pack(">BQ", 0xFF, size)
        )
        masked = bytes(b ^ m for b, m in zip(raw, itertools.cycle(mask), strict=False))
        self._socket.sendall(head + mask + masked)

    def receive(self, timeout):
        """Return the next text; parts of one are joined."""
        self._socket.settimeout(timeout)
        said = b""
        while True:
            first, second = self._file.read(2)
            size = second & 127
            if size == 126:
                size = struct.unpack(">H", self._file.read(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self._file.read(8))[0]
            said += self._file.read(size)
            if first & 0x80 and first & 15 < 8:
                return said.decode()

    def close(self):
        self._file.close()
        self._socket.close()


LEFT = "navigated or closed", "context was destroyed"
"""What a browser says of a script whose page was left while it ran."""


class PageLeft(AssertionError):
    """The page was left meanwhile."""


class Page:
    """A tab, and all that its console has said."""

    def __init__(self, port):
        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            tabs = json.load(answer)
        tab = next(tab for tab in tabs if tab["type"] == "page")
        path = "/" + tab["webSocketDebuggerUrl"].split("/", 3)[3]
        self._socket = WebSocket("127.0.0.1", port, path)
        self._ids = itertools.count(1)
        self.complaints = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """Call a method of the protocol and return its result."""
        mine = next(self._ids)
        self._socket.send(json.dumps({"id": mine, "method": method, "params": params}))
        until = time.monotonic() + 60
        while True:
            said = json.loads(self._socket.receive(max(0.1, until - time.monotonic())))
            if said.get("id") == mine:
                error = said.get("error", {}).get("message", "")
                if any(words in error for words in LEFT):
                    raise PageLeft(error)
                assert not error, error
                return said["result"]
            self._note(said)

    def _note(self, said):
        params = said.get("params", {})
        match said.get("method"):
            case "Runtime.exceptionThrown":
                told = params["exceptionDetails"]
                text = told.get("exception", {}).get("description", told["text"])
                self.complaints.append(text)
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                values = [str(arg.get("value", arg)) for arg in params["args"]]
                self.complaints.append(" ".join(values))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                entry = params["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
            case "Page.javascriptDialogOpening":
                self.complaints.append(f"a dialog: {params['message']}")

    def run(self, script):
        """Return the value of an expression, awaited."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script, what="", seconds=30.0):
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(PageLeft):
                if found := self.run(f"(v => v instanceof Node || v)({script})"):
                    return found
            time.sleep(0.03)
        shown = self.run("document.body.innerText")
        raise AssertionError(f"{what or script}: not in {seconds} s; {shown[:600]}")

    def go(self, address):
        self.call("Page.navigate", url=address)

    def key(self, key):
        """Press a key, and let go."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowDown": 40}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38}
        said = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        if key == "Enter":
            said["text"] = "\r"
        self.call("Input.dispatchKeyEvent", type="keyDown", **said)
        self.call("Input.dispatchKeyEvent", type="keyUp", **said)

    def mouse(self, kind, x, y, **more):
        """Move, press or release at a place of the page."""
        said = {"button": "left", "clickCount": 1} if kind != "mouseMoved" else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **said, **more)

    def close(self):
        self._socket.close()

    def write(self, text):
        self.call("Input.insertText", text=text)

    def size(self, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def picture(self, path, **clip):
        """Write what is seen as a PNG."""
        more = {"clip": {**clip, "scale": 1}} if clip else {}
        found = self.call("Page.captureScreenshot", format="png", **more)
        Path(path).write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def browser(folder):
    """Start a browser; stop it at the end."""
    port_file = Path(folder) / "DevToolsActivePort"
    process = subprocess.Popen(
        [executable(), *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + STARTS_S
        while not port_file.is_file() or not port_file.read_text().strip():
            assert process.poll() is None, "the browser ended"
            assert time.monotonic() < end, f"no browser after {STARTS_S} s"
            time.sleep(0.05)
        with contextlib.closing(Page(int(port_file.read_text().split()[0]))) as page:
            yield page
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(30)
