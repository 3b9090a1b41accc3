// Colours that stay apart for every kind of colour vision.

// Cividis: dark blue is little, yellow is much.
const STOPS = [
  [0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115],
  [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56],
];
// Okabe and Ito, without black and yellow, which vanish on one of two grounds.
const SERIES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a8a", "#9467bd"];

export function rampRgb(share) {
  const at = Math.min(1, Math.max(0, share)) * (STOPS.length - 1);
  const low = Math.min(STOPS.length - 2, Math.floor(at));
  return [0, 1, 2].map((i) => Math.round(STOPS[low][i] + (at - low) * (STOPS[low + 1][i] - STOPS[low][i])));
}

export function ramp(share) {
  return `rgb(${rampRgb(share).join(",")})`;
}

export function seriesColour(at) {
  return SERIES[at % SERIES.length];
}

export function rampGradient() {
  return `linear-gradient(to right,${STOPS.map((_, i) => ramp(i / (STOPS.length - 1))).join(",")})`;
}

export function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
