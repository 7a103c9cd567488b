// Makes a page live: after each event of the server, the page fetches itself and replaces what is in #live.
// Without this script every page works; it is then reloaded every five seconds.
"use strict";
(() => {
  const body = document.body;
  const button = document.getElementById("live-switch");
  const state = document.getElementById("live-state");
  const help = document.getElementById("help");
  let paused = sessionStorage.getItem("tenure-paused") === "yes";
  let stream = null;
  let busy = false;
  let again = false;
  let at = null; // the key of the row that j and k have reached

  const rows = () => [...document.querySelectorAll("#locks tbody a[href^='lock?']")];

  // What has the focus inside #live is found again by its address: the new nodes are others.
  const replace = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("live");
    const live = document.getElementById("live");
    if (!fresh || !live) return;
    const active = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    live.replaceChildren(...fresh.childNodes);
    mark();
    if (active) [...live.querySelectorAll("a")].find((a) => a.getAttribute("href") === active)?.focus({ preventScroll: true });
  };

  const refresh = async () => {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store", credentials: "same-origin" });
      const text = answer.ok ? await answer.text() : null;
      // A selection that somebody copies must not vanish under the hand.
      const selecting = String(getSelection()) !== "";
      if (text !== null && !paused) say(selecting ? "waits while text is selected" : "updates as it happens");
      if (text !== null && !paused && !selecting) replace(text);
    } catch { /* The stream says that the server is away. */ }
    busy = false;
    if (again) { again = false; refresh(); }
  };

  const say = (word) => { if (state.textContent !== word) state.textContent = word; };

  const connect = () => {
    stream = new EventSource("live");
    stream.addEventListener("open", () => say("updates as it happens"));
    stream.addEventListener("look", refresh);
    stream.addEventListener("error", () => {
      say("no connection, trying again");
      // A refused stream is not tried again by the browser itself.
      if (stream?.readyState === EventSource.CLOSED) { stream = null; setTimeout(follow, 5000); }
    });
  };

  const follow = () => {
    const wanted = !paused && !document.hidden;
    if (wanted && !stream) { connect(); refresh(); }
    if (!wanted && stream) { stream.close(); stream = null; }
  };

  const show = () => {
    button.textContent = paused ? "Paused" : "Live";
    button.setAttribute("aria-pressed", String(!paused));
    if (paused) say("this is how it was");
    follow();
  };

  const toggle = () => {
    paused = !paused;
    sessionStorage.setItem("tenure-paused", paused ? "yes" : "no");
    show();
  };

  const mark = () => {
    document.querySelectorAll("tr.here").forEach((row) => row.classList.remove("here"));
    rows().find((a) => a.getAttribute("href") === at)?.closest("tr").classList.add("here");
  };

  const move = (by) => {
    const all = rows();
    if (all.length === 0) return;
    const now = all.findIndex((a) => a.getAttribute("href") === at);
    const next = now < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(now + by, 0), all.length - 1);
    at = all[next].getAttribute("href");
    all[next].focus();
    mark();
  };

  const keys = {
    "/": () => document.getElementById("filter")?.focus(),
    j: () => move(1),
    k: () => move(-1),
    p: () => { if (button) toggle(); },
    "?": () => (help.open ? help.close() : help.showModal()),
  };

  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, textarea, select");
    if (typing && event.key === "Escape") event.target.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
    if (help.open && event.key !== "?") return;
    event.preventDefault();
    keys[event.key]();
  });

  if (!("live" in body.dataset)) return;
  button.hidden = false;
  button.addEventListener("click", toggle);
  document.addEventListener("visibilitychange", follow);
  window.addEventListener("pagehide", () => { stream?.close(); stream = null; });
  window.addEventListener("pageshow", follow);
  show();
})();
