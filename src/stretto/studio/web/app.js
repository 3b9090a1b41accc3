// The page: which views there are, which is shown, what was asked.

import { element, fill, notesOf, replace, sortedTable } from "./dom.js";
import { openSource } from "./source.js";
import { plainText } from "./units.js";
import { drawCollective } from "./views/collective.js";
import { drawCompare } from "./views/compare.js";
import { drawLateness } from "./views/lateness.js";
import { drawOverview } from "./views/overview.js";
import { drawProgram } from "./views/program.js";
import { drawSearch } from "./views/search.js";
import { drawTable } from "./views/table.js";
import { drawTimeline } from "./views/timeline.js";
import { drawTopology } from "./views/topology.js";
import { drawTraffic } from "./views/traffic.js";
import { drawTune } from "./views/tune.js";
import { drawWaiting } from "./views/waiting.js";

const VIEWS = {
  overview: drawOverview,
  timeline: drawTimeline,
  topology: drawTopology,
  traffic: drawTraffic,
  table: drawTable,
  lateness: drawLateness,
  collective: drawCollective,
  program: drawProgram,
  compare: drawCompare,
  tune: drawTune,
  search: drawSearch,
  waiting: drawWaiting,
};

const page = Object.fromEntries(["what", "ask", "question", "examples", "theme", "views", "answer", "main", "status"]
  .map((id) => [id, document.getElementById(id)]));
let source = null;
let index = null;
let shown = { name: "", args: {}, leave: null };
let turn = 0;

async function start() {
  dress(stored("stretto-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  page.theme.addEventListener("click", () => dress(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true));
  page.ask.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(page.question.value);
  });
  try {
    source = await openSource();
  } catch (error) {
    return complain(error);
  }
  addEventListener("hashchange", show);
  if (source.isLive) source.listen(() => refresh(), (isThere) => state(isThere ? "" : "The server has gone; what is shown stays."));
  else await refresh();
}

function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null; // a file, or a browser that keeps nothing
  }
}

function dress(theme, keeps) {
  document.documentElement.dataset.theme = theme;
  page.theme.textContent = theme === "dark" ? "Light" : "Dark";
  page.theme.setAttribute("aria-label", `Use ${theme === "dark" ? "light" : "dark"} colours`);
  if (!keeps) return;
  try {
    localStorage.setItem("stretto-theme", theme);
  } catch {
    // it is dressed now, and forgotten later
  }
}

async function refresh() {
  try {
    index = await source.index();
  } catch (error) {
    return complain(error);
  }
  page.what.textContent = index.files.join(", ");
  page.ask.hidden = !index.asks;
  replace(page.examples, index.examples.map((text) => element("option", { value: text })));
  page.question.placeholder = index.examples[0] ?? "";
  const links = index.views.map((view) => element("a", { href: `#/${view.name}`, id: `to-${view.name}` }, view.title));
  replace(page.views, links);
  state("");
  if (index.state === "loading") return replace(page.main, element("p", { class: "quiet" }, "The recording is being read."));
  if (index.state === "failed") {
    replace(page.main, element("p", { class: "error", role: "alert" }, index.failed));
    if (!index.views.length) return undefined;
  }
  return show();
}

function state(text) {
  const how = source?.isLive ? `stretto ${index?.version ?? ""}, revision ${index?.revision ?? 0}` : `stretto ${index?.version ?? ""}, exported; nothing is sent or asked`;
  page.status.textContent = text || how;
}

function asked() {
  const [name, query] = location.hash.replace(/^#\//, "").split("?");
  const known = index.views.map((view) => view.name);
  const chosen = known.includes(name) ? name : known[0];
  return { name: chosen, args: chosen === name ? Object.fromEntries(new URLSearchParams(query ?? "")) : {} };
}

async function show() {
  if (location.hash && !location.hash.startsWith("#/")) return; // the link that skips to the view
  const { name, args } = asked();
  if (!name) return replace(page.main, element("p", { class: "quiet" }, "There is nothing to show."));
  const mine = ++turn;
  for (const link of page.views.children) {
    if (link.id === `to-${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (shown.name !== name) replace(page.main, element("p", { class: "quiet" }, "Loading."));
  try {
    const data = await source.view(name, args);
    if (mine !== turn) return;
    shown.leave?.();
    const root = element("div", { class: "view", "data-view": name });
    shown = { name, args, leave: null };
    replace(page.main, root);
    shown.leave = VIEWS[name](root, data, contextOf(name, args)) ?? null;
    const ofAll = index.views.some((view) => view.name === "overview") ? [] : index.notes; // else it shows them
    noted(root, notesOf(data.notes ?? []));
    fill(root, [notesOf(ofAll)]);
    page.main.dataset.shown = name;
    page.main.dataset.turn = String(mine);
  } catch (error) {
    if (mine === turn) complain(error);
  }
}

// Beneath the view's heading: what is missing, and how to record it, is read first.
function noted(root, notes) {
  if (!notes) return;
  const heading = root.querySelector("h2");
  if (heading && heading.parentElement === root) heading.after(notes);
  else root.prepend(notes);
}

function contextOf(name, args) {
  return {
    isLive: source.isLive,
    args,
    go: (more) => {
      const all = Object.entries({ ...args, ...more }).filter(([, value]) => value !== undefined && value !== "");
      location.hash = `#/${name}${all.length ? `?${new URLSearchParams(all)}` : ""}`;
    },
  };
}

function complain(error) {
  shown.leave?.();
  shown = { name: "", args: {}, leave: null };
  replace(page.main, element("p", { class: "error", role: "alert" }, error.message));
  if (!(error instanceof TypeError || error instanceof ReferenceError)) return;
  console.error(error);
}

async function ask(text) {
  page.answer.hidden = false;
  try {
    const found = await source.ask(text);
    const columns = found.columns.map((title, at) => ({
      title,
      number: found.rows.some((row) => typeof row[at] === "number"),
      text: (row) => (typeof row[at] === "number" && !Number.isInteger(row[at]) ? plainText(row[at]) : row[at] ?? "-"),
      value: (row) => row[at],
    }));
    replace(page.answer,
      element("p", { class: "asked" }, found.question),
      element("p", {}, found.text),
      found.rows.length ? sortedTable(columns, found.rows, "Answer") : null,
      found.view && index.views.some((view) => view.name === found.view)
        ? element("p", {}, element("a", { href: `#/${found.view}` }, "Show it")) : null,
      closing());
  } catch (error) {
    replace(page.answer, element("p", { class: "error" }, error.message),
      element("p", { class: "quiet" }, `Such as: ${index.examples.join("; ")}`), closing());
  }
}

function closing() {
  return element("button", { type: "button", click: () => { page.answer.hidden = true; page.question.focus(); } }, "Close");
}

start();
