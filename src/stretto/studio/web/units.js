// Numbers with their units, as people write them.

const SIZES = ["B", "KB", "MB", "GB", "TB", "PB"];

export function plainText(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  const size = Math.abs(value);
  if (size >= 1e6) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  if (size >= 100 || size === 0) return value.toLocaleString("en", { maximumFractionDigits: 1 });
  return Number(value.toPrecision(3)).toString();
}

export function timeText(us) {
  if (us === null || us === undefined || Number.isNaN(us)) return "-";
  const size = Math.abs(us);
  if (size >= 6e7) return `${plainText(us / 6e7)} min`;
  if (size >= 1e6) return `${plainText(us / 1e6)} s`;
  if (size >= 1e3) return `${plainText(us / 1e3)} ms`;
  return `${plainText(us)} us`;
}

// Binary, as everywhere in stretto: 1 KB is 1,024 bytes.
export function sizeText(nbytes) {
  let at = 0;
  let value = nbytes;
  while (Math.abs(value) >= 1024 && at < SIZES.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${plainText(value)} ${SIZES[at]}`;
}

export function rateText(gbytesPerS) {
  return `${plainText(gbytesPerS)} GB/s`;
}

export function shareText(share) {
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}
