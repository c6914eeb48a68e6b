// The page of `bansong app`: places what the server renders, sends forms and files. All texts are the server's.
"use strict";
const $ = id => document.getElementById(id);
const page = crypto.randomUUID();
let version = "", timer = 0, wasBusy = false, lastSaid = 0;
const lookAgain = ms => { clearTimeout(timer); timer = setTimeout(refresh, ms); };

history.replaceState(null, "", "/"); // the token is in the cookie now

async function refresh() {
  try {
    const answer = await fetch(`/view?page=${page}&version=${version}`);
    if (!answer.ok) throw new Error(answer.status);
    show(await answer.json());
    $("gone").hidden = true;
  } catch {
    $("gone").hidden = false;
  }
  lookAgain(wasBusy ? 400 : 10000);
}

function show({ busy, html, version: newer }) {
  $("busy").hidden = !busy;
  $("work").inert = Boolean(busy);
  if (busy) {
    $("doing").textContent = busy.text;
    if (busy.total) { $("bar").max = busy.total; $("bar").value = busy.done; } else $("bar").removeAttribute("value");
    if (!wasBusy) $("doing").focus();
    if (Date.now() - lastSaid > 5000) { $("live").textContent = busy.text; lastSaid = Date.now(); } // not at each step
  }
  if (html !== undefined) {
    const isFirst = version === "";
    version = newer;
    $("work").innerHTML = html;
    if (!isFirst) $("focus")?.focus();
    if (wasBusy) $("live").textContent = $("focus")?.textContent ?? $("live").dataset.done;
  }
  wasBusy = Boolean(busy);
}

async function send(...requests) {
  $("work").inert = true;
  lookAgain(400); // shows how much is stored
  try {
    for (const [path, body] of requests) if (!(await fetch(path, { method: "POST", body })).ok) break;
  } catch { /* the next view says why */ }
  $("work").inert = false;
  await refresh();
}

const upload = ({ files: [file], dataset: { use } }) => [`/upload?${new URLSearchParams({ use, name: file.name })}`, file];

document.addEventListener("submit", event => {
  event.preventDefault();
  const form = event.target, given = [...form.querySelectorAll("input[type=file]")].filter(input => input.files.length);
  send(...given.map(upload), [form.getAttribute("action"), new URLSearchParams(new FormData(form))]);
});
document.addEventListener("change", ({ target }) => target.dataset.use === "list" && send(upload(target)));
for (const kind of ["dragover", "dragleave", "drop"]) document.addEventListener(kind, event => {
  event.preventDefault(); // a file that misses would replace the page
  const zone = event.target.closest?.(".drop") ?? document.querySelector("#drop-list");
  zone?.classList.toggle("over", kind === "dragover");
  if (kind !== "drop" || !zone || !event.dataTransfer.files.length) return;
  const input = zone.querySelector("input");
  input.files = event.dataTransfer.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
});
addEventListener("pagehide", () => navigator.sendBeacon(`/closed?page=${page}`));
addEventListener("pageshow", event => { if (event.persisted) refresh(); });
refresh();
