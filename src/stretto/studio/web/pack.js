// Packed data (pack.py): a JSON text with its arrays beside it.

const ARRAYS = {
  u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array,
  u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array,
};

export function unpacked(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const start = 8 + size;
  const settled = (value) => {
    if (Array.isArray(value)) return value.map(settled);
    if (value === null || typeof value !== "object") return value;
    if (Array.isArray(value.$array)) {
      const [kind, offset, count] = value.$array;
      return new ARRAYS[kind](buffer, start + offset, count);
    }
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, settled(one)]));
  };
  return settled(JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size))));
}

export async function inflated(base64) {
  const raw = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}
