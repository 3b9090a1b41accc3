// A canvas as sharp as the screen, drawn again when its size or the theme changes.

import { element } from "./dom.js";
import { themed } from "./colour.js";

export function makeCanvas(label, height, draw, attributes) {
  const canvas = element("canvas", { role: "img", "aria-label": label, ...attributes });
  const root = element("div", { class: "canvas" }, canvas);
  const made = { root, canvas, width: 0, height, redraw };
  let waiting = false;
  function now() {
    waiting = false;
    const width = root.clientWidth;
    if (!width || !root.isConnected) return;
    const scale = window.devicePixelRatio || 1;
    const tall = typeof made.height === "function" ? made.height(width) : made.height;
    canvas.style.height = `${tall}px`;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(tall * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = '12px system-ui, "Liberation Sans", "DejaVu Sans", sans-serif';
    made.width = width;
    draw(pen, width, tall);
  }
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(now);
  }
  new ResizeObserver(redraw).observe(root);
  const theme = new MutationObserver(() => (root.isConnected ? redraw() : theme.disconnect()));
  theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  return made;
}

export function pointerAt(canvas, event) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

// Numbers to write at an axis: round ones, some five of them.
export function ticksOf(low, high, most = 6) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => span / s <= most);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-6; at += 1) found.push(at * step);
  return found;
}

export function powersOf(low, high, most = 8) {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const stride = Math.max(1, Math.ceil((last - first + 1) / most));
  const found = [];
  for (let at = first; at <= last; at += stride) found.push(10 ** at);
  return found;
}

// Axes of a plot: frame {left, top, right, bottom}; x and y {at(value), ticks, text, title}.
export function drawAxes(pen, frame, x, y) {
  pen.strokeStyle = themed("line");
  pen.fillStyle = themed("quiet");
  pen.lineWidth = 1;
  pen.strokeRect(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top);
  pen.textAlign = "center";
  pen.textBaseline = "top";
  let free = -Infinity; // from where on a number would not lie on the one before
  for (const tick of x.ticks) {
    const at = x.at(tick);
    if (at < frame.left - 1 || at > frame.right + 1) continue;
    line(pen, at, frame.bottom, at, frame.bottom + 4);
    const half = pen.measureText(x.text(tick)).width / 2;
    if (at - half < free) continue;
    pen.fillText(x.text(tick), at, frame.bottom + 6);
    free = at + half + 6;
  }
  const page = frame.right + 12;
  const wide = Math.min(page, pen.measureText(x.title).width);
  const middle = Math.min(page - wide / 2, Math.max(wide / 2, (frame.left + frame.right) / 2));
  pen.fillText(x.title, middle, frame.bottom + 22, wide);
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const tick of y.ticks) {
    const at = y.at(tick);
    if (at < frame.top - 1 || at > frame.bottom + 1) continue;
    line(pen, frame.left - 4, at, frame.left, at);
    pen.fillText(y.text(tick), frame.left - 7, at);
  }
  pen.save();
  pen.translate(12, (frame.top + frame.bottom) / 2);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "center";
  pen.fillText(y.title, 0, 0);
  pen.restore();
}

export function line(pen, x1, y1, x2, y2) {
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}
