// Legends: what a colour means, in words, with units.

import { rampGradient } from "./colour.js";
import { element } from "./dom.js";

export function rampLegend(title, low, high, extra) {
  const swatch = element("span", { class: "swatch wide", "aria-hidden": "true" });
  swatch.style.background = rampGradient();
  return element("div", { class: "legend" }, element("span", {}, title),
    element("span", { class: "item" }, low, swatch, high), extra);
}

export function seriesLegend(items) {
  return element("div", { class: "legend" }, items.map(([name, colour, kind]) => swatchItem(name, colour, kind)));
}

export function swatchItem(name, colour, kind) {
  const swatch = element("span", { class: `swatch ${kind ?? ""}`, "aria-hidden": "true" });
  swatch.style.background = colour;
  return element("span", { class: "item" }, swatch, name);
}
