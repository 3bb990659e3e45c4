(() => {
  const near = (part, hit, tip, here) => {
    const [when, ...values] = hit.dataset.words.split("\n");
    const bold = document.createElement("b");
    bold.textContent = when;
    tip.replaceChildren(bold, "\n" + values.join("\n"));
    tip.hidden = false;
    const box = hit.getBoundingClientRect(), all = part.getBoundingClientRect();
    const middle = box.left + box.width / 2 - all.left;
    const left = Math.min(Math.max(middle - tip.offsetWidth / 2, 4), all.width - tip.offsetWidth - 4);
    tip.style.left = left + "px";
    tip.style.top = Math.max(box.top - all.top - tip.offsetHeight - 6, 4) + "px";
    if (here) {
      const x = +hit.getAttribute("x") + hit.getAttribute("width") / 2;
      here.setAttribute("x1", x);
      here.setAttribute("x2", x);
      here.removeAttribute("visibility");
    }
  };
  for (const part of document.querySelectorAll(".part")) {
    const hits = [...part.querySelectorAll(".hit")];
    if (!hits.length) continue;
    for (const hit of hits) {
      hit.dataset.words = hit.textContent;
      hit.replaceChildren();
    }
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    part.append(tip);
    const svg = part.querySelector("svg");
    let here = null;
    if (!svg.classList.contains("rows")) {
      here = document.createElementNS(svg.namespaceURI, "line");
      here.setAttribute("class", "here");
      here.setAttribute("y1", 0);
      here.setAttribute("y2", 208);
      here.setAttribute("visibility", "hidden");
      svg.insertBefore(here, hits[0]);
    }
    let at = -1;
    const hide = () => { tip.hidden = true; if (here) here.setAttribute("visibility", "hidden"); };
    const show = (to) => { at = to; near(part, hits[at], tip, here); };
    hits.forEach((hit, number) => {
      hit.addEventListener("pointerenter", () => show(number));
      hit.addEventListener("pointerdown", () => show(number));
    });
    svg.addEventListener("pointerleave", hide);
    part.addEventListener("blur", hide);
    part.addEventListener("keydown", (event) => {
      const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!way) return;
      event.preventDefault();
      show(Math.min(Math.max(at + way, 0), hits.length - 1));
    });
  }
})();
