// Keeps the part of the page that the server renders fresh. What comes was
// escaped by the server and is parsed as a document, never set as HTML; the
// pieces that say the same as before stay the elements they are.
"use strict";

const every = 5000; // ms between two refreshes
const slowest = 15000; // ms between two tries while the server cannot be reached
const patience = 8000; // ms for one answer: longer than the server's own limit
const settle = 1200; // ms without a movement over the list before it is reordered
const longest = 6000; // ms for which movements can put that off

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const unreachable = document.getElementById("unreachable");

let etag = document.getElementById("live").dataset.etag;
let ahead = 0; // ms by which this clock is ahead of the server's
let failures = 0;
let timer = 0;
let busy = false;
let moved = -Infinity; // when the reader last moved over the list
let lastAnswer = Date.now();

// age says how long ago something was, as age in age.go does.
function age(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 5) return "just now";
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} days ago`;
}

function tellTimes() {
  const now = Date.now() - ahead;
  for (const t of document.querySelectorAll("time[data-age]")) {
    const text = age(now - Date.parse(t.dateTime));
    if (t.textContent !== text) t.textContent = text;
  }
  for (const t of document.querySelectorAll("time[data-clock]")) {
    const text = new Date(t.dateTime).toLocaleString([], { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
    if (t.textContent !== text) t.textContent = text;
  }
}

// replace puts what the server says now in the place of what it said before.
function replace(old, fresh) {
  const had = old.querySelector(".thumb img");
  const has = fresh.querySelector(".thumb img");
  if (had && has && had.src === has.src) has.replaceWith(had); // loaded already
  const open = old.querySelector("details")?.open;
  if (open && fresh.querySelector("details")) fresh.querySelector("details").open = true;
  const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const before = old.querySelector("[data-count]")?.textContent;
  old.replaceWith(fresh);
  if (focused !== null) {
    [...fresh.querySelectorAll("a:not([tabindex])")].find((a) => a.getAttribute("href") === focused)?.focus({ preventScroll: true });
  }
  const count = fresh.querySelector("[data-count]");
  if (count && count.textContent !== before) count.classList.add("changed");
}

// sync makes the children of old those of fresh, in its order. Both have an id
// each, and a version: what has the same stays.
function sync(old, fresh) {
  const wanted = [...fresh.children];
  const ids = new Set(wanted.map((c) => c.id));
  for (const child of [...old.children]) if (!ids.has(child.id)) child.remove();
  const here = new Map([...old.children].map((c) => [c.id, c]));
  wanted.forEach((want, i) => {
    let node = here.get(want.id);
    if (!node) {
      node = document.adoptNode(want);
      if (node.matches(".link")) node.classList.add("new");
    } else if ("list" in want.dataset) {
      sync(node, want);
    } else if (node.dataset.v !== want.dataset.v) {
      replace(node, document.adoptNode(want));
      node = want;
    } else {
      const times = want.querySelectorAll("time");
      node.querySelectorAll("time").forEach((t, j) => {
        if (!times[j]) return; // it was not sent: it is the same
        t.dateTime = times[j].dateTime;
        t.title = times[j].title;
      });
    }
    if (old.children[i] !== node) old.insertBefore(node, old.children[i] ?? null);
  });
}

const places = () => new Map([...document.querySelectorAll(".link")].map((li) => [li.id, li.getBoundingClientRect().top]));

// show swaps the new state in: what the reader looks at stays where it is, and
// links that change places are seen to move.
function show(fresh) {
  const live = document.getElementById("live");
  const before = places();
  const focused = document.activeElement;
  const anchor = scrollY > 0 ? [...document.querySelectorAll(".link")].find((li) => li.getBoundingClientRect().bottom > 80) : null;
  ahead = Date.now() - Date.parse(fresh.dataset.now);
  sync(live, fresh);
  const subtitle = document.querySelector("#subtitle bdi");
  if (subtitle.textContent !== fresh.dataset.subtitle) subtitle.textContent = fresh.dataset.subtitle;
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true }); // lost by moving
  tellTimes();
  let shift = 0;
  if (anchor && document.getElementById(anchor.id)) {
    shift = document.getElementById(anchor.id).getBoundingClientRect().top - before.get(anchor.id);
    if (Math.abs(shift) > innerHeight) shift = 0;
    if (shift) scrollBy({ top: shift, behavior: "instant" });
  }
  if (calm.matches) return;
  for (const li of document.querySelectorAll(".link")) {
    const from = before.get(li.id);
    const by = from === undefined ? 0 : from - li.getBoundingClientRect().top;
    if (Math.abs(by) > 1 && Math.abs(by) < 2 * innerHeight) {
      li.animate([{ transform: `translateY(${by}px)` }, { transform: "none" }], { duration: 450, easing: "cubic-bezier(.2, .7, .2, 1)" });
    }
  }
}

// settled waits until the reader is not about to click: a list that moves under
// the pointer sends people to the wrong link.
async function settled() {
  const began = performance.now();
  while (performance.now() - moved < settle && performance.now() - began < longest) {
    await new Promise((done) => setTimeout(done, 200));
  }
}

function reached() {
  failures = 0;
  lastAnswer = Date.now();
  unreachable.hidden = true;
}

function missed(why) {
  failures++;
  const since = new Date(lastAnswer).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const text = `${why} What you see is from ${since}; trying again.`;
  if (unreachable.textContent !== text) unreachable.textContent = text;
  unreachable.hidden = false;
}

// fill gives the lines that were not sent again the names of those that are
// shown already, by which sync finds them.
function fill(fresh, have) {
  for (const line of fresh.querySelectorAll("[data-same]")) {
    const same = have[line.dataset.same];
    line.id = same.id;
    line.dataset.v = same.version;
  }
}

async function refresh() {
  const address = "/fragment" + location.search;
  const have = [...document.querySelectorAll("#links > .link")].map((li) => ({ id: li.id, version: li.dataset.v }));
  const headers = { "If-None-Match": etag, "Weir-Have": have.map((line) => line.version).join(",") };
  const answer = await fetch(address, { headers, signal: AbortSignal.timeout(patience) });
  if (answer.status === 304) return reached();
  if (!answer.ok) return missed(answer.status === 503 ? "Nothing can be counted at the moment." : `The server answers with an error (${answer.status}).`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
  if (!fresh) return missed("The server answers with something else than the ranking.");
  fill(fresh, have);
  reached();
  await settled();
  show(fresh);
  etag = fresh.dataset.etag;
}

async function tick() {
  if (busy || document.hidden) return;
  clearTimeout(timer);
  busy = true;
  try {
    await refresh();
  } catch {
    missed("The server cannot be reached.");
  }
  busy = false;
  if (!document.hidden) timer = setTimeout(tick, Math.min(every * 2 ** Math.min(failures, 8), slowest));
}

for (const kind of ["pointermove", "pointerdown", "touchmove", "scroll"]) {
  document.addEventListener(kind, (e) => { if (kind === "scroll" || e.target.closest?.("#links")) moved = performance.now(); }, { passive: true });
}
document.addEventListener("animationend", (e) => e.target.classList.remove("changed", "new"));
document.addEventListener("visibilitychange", () => { document.hidden ? clearTimeout(timer) : tick(); });
addEventListener("online", tick);
addEventListener("pageshow", (e) => e.persisted && tick());
setInterval(() => document.hidden || tellTimes(), 1000);
tellTimes();
timer = setTimeout(tick, every);
