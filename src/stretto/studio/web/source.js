// Where data come from: this page's server, or the page itself when it is a file.

import { inflated, unpacked } from "./pack.js";

export async function openSource() {
  const inside = document.getElementById("embedded");
  if (!inside) return liveSource();
  const kept = JSON.parse(new TextDecoder().decode(await inflated(inside.textContent)));
  return fileSource(kept);
}

function keyOf(name, args) {
  const said = Object.entries(args ?? {}).filter(([, value]) => value !== undefined && value !== "");
  return [name, ...said.map(([key, value]) => `${key}=${value}`)].join("&");
}

function answered(found) {
  if (found.error) throw new Error(found.error);
  return found;
}

function liveSource() {
  async function asked(path) {
    const response = await fetch(path, { credentials: "same-origin" });
    if (response.ok) return response;
    const said = await response.json().catch(() => ({}));
    throw new Error(said.error ?? `the server says ${response.status}`);
  }
  return {
    isLive: true,
    index: async () => (await asked("/index")).json(),
    view: async (name, args) => {
      const query = new URLSearchParams(Object.entries(args ?? {}).filter(([, v]) => v !== undefined && v !== ""));
      return unpacked(await (await asked(`/view/${encodeURIComponent(name)}?${query}`)).arrayBuffer());
    },
    ask: async (text) => answered(await (await asked(`/ask?${new URLSearchParams({ q: text })}`)).json()),
    listen: (onRevision, onState) => {
      const events = new EventSource("/events");
      events.onmessage = (event) => onRevision(Number(event.data));
      events.onopen = () => onState(true);
      events.onerror = () => onState(false);
    },
  };
}

function fileSource(kept) {
  return {
    isLive: false,
    index: async () => kept.index,
    view: async (name, args) => {
      const found = kept.data[keyOf(name, args)] ?? kept.data[name];
      if (found === undefined) throw new Error(`this file has no ${name}`);
      if (found.startsWith("!")) throw new Error(JSON.parse(atob(found.slice(1))).error);
      return unpacked(await inflated(found));
    },
    ask: async (text) => {
      const found = kept.answers[text.trim()];
      if (!found) {
        const some = Object.keys(kept.answers).join("; ");
        throw new Error(`this page is a file: it answers ${some}. For other questions run stretto studio.`);
      }
      return answered(found);
    },
    listen: () => {},
  };
}
