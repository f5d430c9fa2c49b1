// Refreshes the live part of the page, which the server renders. The server escapes
// it, and the script parses it as a document and never sets HTML. Elements that have
// not changed stay.
"use strict";

const interval = 5000; // ms between two refreshes
const maxInterval = 15000; // ms between two attempts while the server cannot be reached
const timeout = 8000; // ms for a response; longer than the server's own limit
const idleTime = 1200; // ms without pointer movement over the list before it is reordered
const maxIdleWait = 6000; // ms for which movement can delay that

const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const unreachable = document.getElementById("unreachable");

let etag = document.getElementById("live").dataset.etag;
let clockOffset = 0; // ms by which this clock is ahead of the server's
let failures = 0;
let timer = 0;
let busy = false;
let lastMoved = -Infinity; // when the reader last moved over the list
let lastSuccess = Date.now();

// age formats the time since an event, as age in age.go does.
function age(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 5) return "just now";
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} days ago`;
}

function updateTimes() {
  const now = Date.now() - clockOffset;
  for (const t of document.querySelectorAll("time[data-age]")) {
    const text = age(now - Date.parse(t.dateTime));
    if (t.textContent !== text) t.textContent = text;
  }
  for (const t of document.querySelectorAll("time[data-clock]")) {
    const text = new Date(t.dateTime).toLocaleString([], { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
    if (t.textContent !== text) t.textContent = text;
  }
}

// replace replaces an element by its new version.
function replace(old, fresh) {
  const had = old.querySelector(".thumb img");
  const has = fresh.querySelector(".thumb img");
  if (had && has && had.src === has.src) has.replaceWith(had); // it is loaded already
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

// sync makes the children of old equal to those of fresh, in the same order. Each child
// has an ID and a version; children with the same ID and version stay.
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
        if (!times[j]) return; // the line was not sent, because it has not changed
        t.dateTime = times[j].dateTime;
        t.title = times[j].title;
      });
    }
    if (old.children[i] !== node) old.insertBefore(node, old.children[i] ?? null);
  });
}

const positions = () => new Map([...document.querySelectorAll(".link")].map((li) => [li.id, li.getBoundingClientRect().top]));

// show applies the new version. It keeps the scroll position of the link that the
// reader looks at and animates links that move.
function show(fresh) {
  const live = document.getElementById("live");
  const before = positions();
  const focused = document.activeElement;
  const anchor = scrollY > 0 ? [...document.querySelectorAll(".link")].find((li) => li.getBoundingClientRect().bottom > 80) : null;
  clockOffset = Date.now() - Date.parse(fresh.dataset.now);
  sync(live, fresh);
  const subtitle = document.querySelector("#subtitle bdi");
  if (subtitle.textContent !== fresh.dataset.subtitle) subtitle.textContent = fresh.dataset.subtitle;
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true }); // moving an element loses the focus
  updateTimes();
  let shift = 0;
  if (anchor && document.getElementById(anchor.id)) {
    shift = document.getElementById(anchor.id).getBoundingClientRect().top - before.get(anchor.id);
    if (Math.abs(shift) > innerHeight) shift = 0;
    if (shift) scrollBy({ top: shift, behavior: "instant" });
  }
  if (reducedMotion.matches) return;
  for (const li of document.querySelectorAll(".link")) {
    const from = before.get(li.id);
    const by = from === undefined ? 0 : from - li.getBoundingClientRect().top;
    if (Math.abs(by) > 1 && Math.abs(by) < 2 * innerHeight) {
      li.animate([{ transform: `translateY(${by}px)` }, { transform: "none" }], { duration: 450, easing: "cubic-bezier(.2, .7, .2, 1)" });
    }
  }
}

// waitUntilIdle waits until the pointer rests: a list that moves under the pointer
// leads people to the wrong link.
async function waitUntilIdle() {
  const began = performance.now();
  while (performance.now() - lastMoved < idleTime && performance.now() - began < maxIdleWait) {
    await new Promise((done) => setTimeout(done, 200));
  }
}

function succeeded() {
  failures = 0;
  lastSuccess = Date.now();
  unreachable.hidden = true;
}

function failed(reason) {
  failures++;
  const since = new Date(lastSuccess).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const text = `${reason} This page is from ${since}; trying again.`;
  if (unreachable.textContent !== text) unreachable.textContent = text;
  unreachable.hidden = false;
}

// fillKnown sets the IDs and versions of the lines that the server omitted, so that
// sync finds them.
function fillKnown(fresh, have) {
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
  const response = await fetch(address, { headers, signal: AbortSignal.timeout(timeout) });
  if (response.status === 304) return succeeded();
  if (!response.ok) return failed(response.status === 503 ? "Links cannot be counted at the moment." : `The server returned an error (${response.status}).`);
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("live");
  if (!fresh) return failed("The server did not return the ranking.");
  fillKnown(fresh, have);
  succeeded();
  await waitUntilIdle();
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
    failed("The server cannot be reached.");
  }
  busy = false;
  if (!document.hidden) timer = setTimeout(tick, Math.min(interval * 2 ** Math.min(failures, 8), maxInterval));
}

for (const kind of ["pointermove", "pointerdown", "touchmove", "scroll"]) {
  document.addEventListener(kind, (e) => { if (kind === "scroll" || e.target.closest?.("#links")) lastMoved = performance.now(); }, { passive: true });
}
document.addEventListener("animationend", (e) => e.target.classList.remove("changed", "new"));
document.addEventListener("visibilitychange", () => { document.hidden ? clearTimeout(timer) : tick(); });
addEventListener("online", tick);
addEventListener("pageshow", (e) => e.persisted && tick());
setInterval(() => document.hidden || updateTimes(), 1000);
updateTimes();
timer = setTimeout(tick, interval);
