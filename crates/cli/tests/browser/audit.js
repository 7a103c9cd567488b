// Returns the flaws of the page as a list of texts. The rules are those of WCAG 2.2 AA that a program can check here.
const flaws = [];
const flaw = (rule, node) => flaws.push(`${rule}: ${(node?.outerHTML ?? "").slice(0, 120)}`);
const all = (selector) => [...document.querySelectorAll(selector)];
const shown = (node) => node.checkVisibility({ visibilityProperty: true });

if (!document.documentElement.lang) flaw("the page names its language");
if (!document.title) flaw("the page has a title");
if (all("h1").length !== 1) flaw("one first heading");
if (all("main").length !== 1 || all("header").length !== 1) flaw("one main part and one header");
let level = 0;
for (const heading of all("h1, h2, h3, h4").filter(shown)) {
  const own = Number(heading.tagName[1]);
  if (own > level + 1) flaw("headings skip no level", heading);
  level = own;
}
for (const input of all("input:not([type=hidden]), select, textarea")) {
  if (!input.labels.length && !input.ariaLabel) flaw("a field has a label", input);
}
for (const control of all("a[href], button")) {
  if (!control.textContent.trim() && !control.ariaLabel) flaw("a control has a name", control);
  if (control.tabIndex < 0) flaw("a control is reached by keyboard", control);
}
for (const table of all("table")) {
  if (!table.caption?.textContent.trim()) flaw("a table has a caption", table);
  if (!table.querySelector("thead th")) flaw("a table has headers", table);
}
all("th:not([scope])").forEach((cell) => flaw("a header has a scope", cell));
for (const row of all("tbody tr")) {
  const columns = row.closest("table").querySelectorAll("thead th").length;
  const cells = [...row.cells].reduce((sum, cell) => sum + cell.colSpan, 0);
  if (cells !== columns) flaw("a row has a cell for each column", row);
}
all("svg:not([aria-hidden=true]):not([role=img])").forEach((svg) => flaw("a drawing is named or hidden", svg));
all(".state").filter((state) => !/\p{L}/u.test(state.textContent)).forEach((state) => flaw("a state has a word", state));
const ids = all("[id]").map((node) => node.id);
ids.filter((id, index) => ids.indexOf(id) !== index).forEach((id) => flaw(`an id is used once: ${id}`));
for (const node of all("[aria-labelledby]")) {
  if (!document.getElementById(node.getAttribute("aria-labelledby"))) flaw("a label is there", node);
}
all("#locks").map((table) => table.parentElement).filter((box) => box.scrollWidth > box.clientWidth).forEach((box) => flaw("the list fits its box", box));
if (document.documentElement.scrollWidth > innerWidth) flaw("the page is not wider than the window");

const rgb = (text) => text.match(/[\d.]+/g).map(Number);
const light = ([r, g, b]) => {
  const part = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
};
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const color = rgb(getComputedStyle(at).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let text = walker.nextNode(); text; text = walker.nextNode()) {
  const node = text.parentElement;
  if (!text.data.trim() || !shown(node) || node.matches("script, noscript, .skip")) continue;
  const style = getComputedStyle(node);
  const [one, other] = [light(rgb(style.color)), light(behind(node))];
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  const size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (contrast < (large ? 3 : 4.5)) flaw(`contrast ${contrast.toFixed(2)}`, node);
  if (size < 12) flaw("text is large enough to read", node);
}
return flaws;
