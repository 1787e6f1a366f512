"use strict";
const { rounds, colours } = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const slider = find("slider"), tree = find("tree"), all = find("all");
const detail = make("div", "detail");
detail.setAttribute("aria-live", "polite");
const tokens = [...document.querySelectorAll(".token")];
const SIGNS = { accepted: "✓", rejected: "✗", unreached: "○", cut: "–" };
const WORDS = { accepted: "accepted", rejected: "rejected", unreached: "not reached", cut: "not verified" };

function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}
const visible = (text) => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "·") || "∅";
const share = (p) => p >= 0.995 ? "1.0" : p.toFixed(2).slice(1);

function bar(p, role) {
  const outer = make("span", "bar"), inner = make("i");
  inner.style.width = `${Math.round(100 * p)}%`;
  if (role) inner.style.setProperty("--own", `var(--${role})`);
  outer.append(inner);
  outer.setAttribute("aria-hidden", "true");
  return outer;
}

function chip(text, origin) {
  const element = make("span", "chip mono", visible(text));
  element.style.setProperty("--own", `var(--${colours[origin] || "plain"})`);
  element.title = origin;
  return element;
}

function describe(node) {
  const parts = [`proposed by ${node.source}`];
  if (node.estimate !== null) parts.push(`which expected ${node.estimate.toFixed(2)}`);
  if (node.drafted !== null) parts.push(`drawn with probability ${node.drafted.toFixed(2)}`);
  if (node.target !== null) parts.push(`target ${node.target.toPrecision(2)}, rank ${node.rank}`);
  return [parts.join(", "), node.reason || "accepted"].map((part) => part[0].toUpperCase() + part.slice(1) + ".").join(" ");
}

function choices(title, top) {
  const box = make("div");
  if (!top.length) return box;
  box.append(make("div", "muted", title));
  for (const [text, p] of top) {
    const line = make("div", "choice");
    line.append(make("span", "mono", visible(text)), bar(p), make("span", "", p.toFixed(3)));
    box.append(line);
  }
  return box;
}

function select(item) {
  for (const other of tree.querySelectorAll("[aria-selected]")) {
    other.removeAttribute("aria-selected");
    other.tabIndex = -1;
  }
  item.setAttribute("aria-selected", "true");
  item.tabIndex = 0;
  const node = rounds[slider.value].nodes[item.dataset.node];
  detail.replaceChildren(make("div", "", describe(node)), choices("After it the target would put", node.top));
  item.firstChild.after(detail);
}

function branch(nodes, children, index, level) {
  const node = nodes[index];
  const item = make("li", node.status);
  item.setAttribute("role", "treeitem");
  item.setAttribute("aria-level", level);
  item.tabIndex = -1;
  item.dataset.node = index;
  const row = make("div", "row");
  const sign = make("span", "sign", SIGNS[node.status]);
  sign.setAttribute("aria-label", WORDS[node.status]);
  const who = node.source + (node.estimate === null ? "" : ` ${node.estimate.toFixed(2)}`);
  const meter = make("span", "meter");
  if (node.target !== null) meter.append(bar(node.target), make("span", "", share(node.target)));
  row.append(sign, chip(node.text, node.source), make("span", "who", who), meter);
  item.append(row);
  if (children[index]) {
    item.setAttribute("aria-expanded", "true");
    const group = make("ul");
    group.setAttribute("role", "group");
    for (const child of children[index]) group.append(branch(nodes, children, child, level + 1));
    item.append(group);
  }
  return item;
}

function show(number) {
  const round = rounds[number];
  slider.value = number;
  find("number").value = number;
  find("back").disabled = number <= 0;
  find("on").disabled = number >= rounds.length - 1;
  find("said").textContent = `${round.nodes.length} proposed, ${round.verified} verified, ` +
    `${round.accepted} accepted, ${round.pieces.length} committed, ${round.ms.toFixed(1)} ms`;
  find("root").replaceChildren(choices("After the text so far the target would put", round.top));
  find("root").firstChild.className = "detail";
  const children = {}, numCut = round.nodes.length - round.verified;
  find("cut").hidden = !numCut;
  find("num-cut").textContent = numCut;
  round.nodes.forEach((node, index) => {
    if (all.checked || node.status !== "cut") (children[node.parent] ||= []).push(index);
  });
  tree.replaceChildren(...(children[-1] || []).map((index) => branch(round.nodes, children, index, 1)));
  tree.hidden = !tree.firstChild;
  if (tree.firstChild) tree.firstChild.tabIndex = 0;
  const committed = find("committed");
  committed.replaceChildren(make("span", "muted", "Committed "));
  for (const [text, origin] of round.pieces) committed.append(chip(text, origin));
  for (const token of tokens) {
    const own = Number(token.dataset.round);
    token.classList.toggle("later", own > number);
    token.classList.toggle("now", own === number);
  }
}

tree.addEventListener("click", (event) => {
  const item = event.target.closest("[role=treeitem]");
  if (!item) return;
  select(item);
  item.focus();
});
tree.addEventListener("focusin", (event) => {
  const item = event.target.closest("[role=treeitem]");
  if (item) select(item);
});
tree.addEventListener("keydown", (event) => {
  const item = event.target.closest("[role=treeitem]");
  const shown = [...tree.querySelectorAll("[role=treeitem]")].filter((one) => one.offsetParent !== null);
  const at = shown.indexOf(item);
  const expanded = item.getAttribute("aria-expanded");
  let next = null;
  if (event.key === "ArrowDown") next = shown[at + 1];
  else if (event.key === "ArrowUp") next = shown[at - 1];
  else if (event.key === "Home") next = shown[0];
  else if (event.key === "End") next = shown[shown.length - 1];
  else if (event.key === "ArrowRight" && expanded === "false") item.setAttribute("aria-expanded", "true");
  else if (event.key === "ArrowRight" && expanded === "true") next = shown[at + 1];
  else if (event.key === "ArrowLeft" && expanded === "true") item.setAttribute("aria-expanded", "false");
  else if (event.key === "ArrowLeft") next = item.parentElement.closest("[role=treeitem]");
  else return;
  event.preventDefault();
  if (next) next.focus();
});
slider.addEventListener("input", () => show(Number(slider.value)));
find("back").addEventListener("click", () => show(Math.max(0, Number(slider.value) - 1)));
find("on").addEventListener("click", () => show(Math.min(rounds.length - 1, Number(slider.value) + 1)));
all.addEventListener("change", () => show(Number(slider.value)));
find("text").addEventListener("click", (event) => {
  const token = event.target.closest(".token");
  if (token) show(Number(token.dataset.round));
});
show(rounds.findIndex((round) => round.accepted > 0) > 0 ? rounds.findIndex((round) => round.accepted > 0) : 0);
