// The console works without this file. It adds live pages, the time bar, cursors, selection and keys.
"use strict";
(() => {
  const SILENT_MS = 2500; // A server that says nothing for so long does not answer.
  const REST_MS = 1500; // A page rests so long between two refreshes,
  const REST_PARTS = 20; // or so many times as long as the last one took.
  const TAIL_ROWS = 300;
  const PLAY_MS = 1500;
  const PLAY_STEP = 20; // of the 1000 of the time bar
  const MOST_VIEWS = 12;
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const body = document.body;
  document.documentElement.classList.add("has-script");

  // Keys: / goes to the search field, g and a letter to a page.
  let lastKey = "";
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      one("#find").focus();
    } else if (lastKey === "g") {
      const links = all(".side a").filter((link) => link.textContent[0].toLowerCase() === event.key);
      const current = links.findIndex((link) => link.hasAttribute("aria-current"));
      if (links.length) links[(current + 1) % links.length].click();
    }
    lastKey = event.key;
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-all]");
    if (!button) return;
    const boxes = all(`[data-select="${button.dataset.all}"]`);
    const isWanted = !boxes.every((box) => box.checked);
    boxes.forEach((box) => { box.checked = isWanted; });
  });

  // The time bar: its right end is the present.
  const scrub = one("#scrub");
  if (scrub) {
    const { from, until } = scrub.dataset;
    const inZone = (value) => new Date(Number(from) + (until - from) * value / scrub.max + scrub.dataset.offset * 60000)
      .toISOString().slice(0, 19).replace("T", " ");
    const momentAt = (value) => new Date(Number(from) + (until - from) * value / scrub.max).toISOString();
    scrub.addEventListener("input", () => {
      const isPresent = scrub.value === scrub.max;
      const text = isPresent ? "live" : inZone(scrub.value);
      scrub.setAttribute("aria-valuetext", text);
      one("#moment").textContent = text;
      for (const [name, mark] of [["x1", "#mark"], ["x2", "#mark"], ["cx", "#knob"]]) {
        one(mark).setAttribute(name, `${100 * scrub.value / scrub.max}%`);
      }
    });
    const goTo = (value) => {
      const address = new URL(location.href);
      if (value >= Number(scrub.max)) address.searchParams.delete("at");
      else address.searchParams.set("at", momentAt(value));
      location.assign(address);
    };
    scrub.addEventListener("change", () => goTo(Number(scrub.value)));

    // Play goes on from page to page until it reaches the present, or is pressed again.
    const play = one("#play");
    const go = () => { play.dataset.timer = setTimeout(() => goTo(Number(scrub.value) + PLAY_STEP), PLAY_MS); };
    const showPlaying = (isPlaying) => {
      play.setAttribute("aria-pressed", isPlaying);
      play.textContent = isPlaying ? "Pause" : "Play";
    };
    if (play) {
      play.addEventListener("click", () => {
        const isPlaying = play.getAttribute("aria-pressed") !== "true";
        showPlaying(isPlaying);
        sessionStorage.setItem("plays", isPlaying ? "yes" : "");
        if (isPlaying) go(); else clearTimeout(play.dataset.timer);
      });
      if (sessionStorage.getItem("plays")) { showPlaying(true); go(); }
    } else sessionStorage.removeItem("plays");
  }

  // Zone and theme: the browser's own zone is one more choice.
  const zone = one("#zone"), theme = one("#theme");
  if (zone) {
    const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (own && ![...zone.options].some((each) => each.value === own)) zone.add(new Option(own, own));
    for (const choice of [zone, theme]) choice.addEventListener("change", () => choice.form.submit());
  }

  // A cursor that all charts of a page share; the figures beside them follow it.
  const reading = (node) => node.closest(".row").querySelector(".read");
  document.addEventListener("pointermove", (event) => {
    const chart = event.target.closest && event.target.closest("svg.chart");
    const charts = all("svg.chart");
    if (!chart) { if (one("line.cursor")) clearCursor(charts); return; }
    const box = chart.getBoundingClientRect();
    const part = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    for (const each of charts) {
      let line = one("line.cursor", each);
      if (!line) {
        line = each.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "line"));
        line.setAttribute("class", "cursor");
        line.setAttribute("y1", 0);
        line.setAttribute("y2", 104);
      }
      line.setAttribute("x1", `${100 * part}%`);
      line.setAttribute("x2", `${100 * part}%`);
      const read = reading(each), lines = JSON.parse(read.dataset.lines);
      const at = Math.round(part * (lines[0].length - 2));
      const figure = one("b", read);
      figure.dataset.usual ??= figure.textContent;
      figure.textContent = lines.map((values) => values[1 + at]).join(" · ");
    }
  });
  const clearCursor = (charts) => charts.forEach((each) => {
    one("line.cursor", each)?.remove();
    const figure = one("b", reading(each));
    if (figure.dataset.usual) figure.textContent = figure.dataset.usual;
  });

  // Searches that this browser keeps.
  const views = one("#views");
  const readViews = () => JSON.parse(localStorage.getItem("views") || "[]");
  const showViews = () => {
    views.replaceChildren(...readViews().map((text) => {
      const link = Object.assign(document.createElement("a"), { className: "chip", textContent: text });
      link.href = `/console/jobs?q=${encodeURIComponent(text)}`;
      const drop = Object.assign(document.createElement("button"), { type: "button", className: "plain", textContent: "×" });
      drop.setAttribute("aria-label", `Forget ${text}`);
      drop.addEventListener("click", () => keepViews(readViews().filter((each) => each !== text)));
      const both = document.createElement("span");
      both.append(link, drop);
      return both;
    }));
  };
  const keepViews = (found) => {
    localStorage.setItem("views", JSON.stringify(found.slice(0, MOST_VIEWS)));
    showViews();
  };
  if (views) {
    one("#save-view")?.addEventListener("click", () => {
      const text = one("#find").value.trim();
      if (text) keepViews([text, ...readViews().filter((each) => each !== text)]);
    });
    showViews();
  }

  // The tail of the log: a filter, a pause, and no more rows than a page can show.
  const tail = one("#tail"), filter = one("#filter"), pause = one("#pause");
  const sift = () => {
    const words = filter.value.toLowerCase();
    for (const row of tail.rows) row.hidden = !row.textContent.toLowerCase().includes(words);
  };
  if (tail) {
    filter.addEventListener("input", sift);
    pause.addEventListener("click", () => {
      const isPaused = pause.getAttribute("aria-pressed") !== "true";
      pause.setAttribute("aria-pressed", isPaused);
      pause.textContent = isPaused ? "Continue" : "Pause";
    });
  }
  const showRecords = (event) => {
    if (pause.getAttribute("aria-pressed") === "true") return;
    tail.insertAdjacentHTML("afterbegin", event.data); // The server has escaped it.
    while (tail.rows.length > TAIL_ROWS) tail.rows[tail.rows.length - 1].remove();
    sift();
  };

  // Live: the server says every second that it is there, and the page fetches itself anew. What a
  // person has typed, checked or opened stays as it is.
  const isKept = (node) => node.nodeType === Node.ELEMENT_NODE && (node.hasAttribute("data-keep") || node.matches("line.cursor"));
  const isFilledIn = (node, fresh) => node.nodeType === Node.ELEMENT_NODE
    && node.matches("input:not([type=hidden]), textarea, select")
    && node.name === fresh.name && (node.type !== "checkbox" || node.value === fresh.value);
  const callbacks = {
    beforeNodeMorphed: (node, fresh) => !isKept(node) && !isFilledIn(node, fresh),
    beforeNodeRemoved: (node) => !isKept(node),
    beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS"),
  };
  let isFetching = false, restsUntil = 0, heardAt = performance.now();
  let shownTime = new Date(), refused = 0; // When the page was read, and the status if it cannot be now.
  const refresh = async () => {
    if (isFetching || document.hidden || !("live" in body.dataset) || performance.now() < restsUntil) return;
    isFetching = true;
    const began = performance.now();
    try {
      const response = await fetch(location.href, { headers: { "X-Refresh": "1" } });
      refused = response.status >= 500 ? response.status : 0;
      if (response.redirected) location.reload(); // The session has ended.
      else if (!refused) { // A page that is gone says so itself.
        const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
        Idiomorph.morph(one("main"), one("main", fresh), { callbacks });
        const activity = one("#activity"), newer = one("#activity", fresh);
        if (activity && newer) Idiomorph.morph(activity, newer);
        document.title = fresh.title;
        shownTime = new Date();
      }
    } catch { /* The banner says that the server does not answer. */ } finally {
      isFetching = false;
      restsUntil = performance.now() + Math.max(REST_MS, REST_PARTS * (performance.now() - began));
    }
  };
  const status = one("#status"), lost = one("#lost");
  const liveWord = status && status.textContent;
  const hear = () => {
    heardAt = performance.now();
    refresh();
    if (refused) {
      showLost(`The server answers this page with an error, ${refused}.`, "an error");
      return;
    }
    body.classList.remove("is-lost");
    lost.hidden = true;
    if (status.textContent !== liveWord) status.textContent = liveWord;
  };
  const showLost = (sentence, word) => {
    body.classList.add("is-lost");
    status.textContent = word;
    const time = new Date(shownTime.getTime() + scrub.dataset.offset * 60000).toISOString().slice(11, 19);
    one("#silence").textContent = sentence;
    one("#old").textContent = `What is shown is from ${time}.`;
    lost.hidden = false;
  };
  const checkSilence = () => {
    const silent = performance.now() - heardAt;
    if (silent < SILENT_MS || document.hidden) return;
    showLost(`The server has not answered for ${Math.round(silent / 1000)} s.`, "no answer");
  };
  const listen = () => {
    const source = new EventSource(body.dataset.events);
    source.addEventListener("tick", hear);
    if (tail) source.addEventListener("records", showRecords);
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) setTimeout(listen, REST_MS);
    });
    addEventListener("pagehide", () => source.close());
  };
  if (body.dataset.events) {
    listen();
    setInterval(checkSilence, 500);
    document.addEventListener("visibilitychange", () => { heardAt = performance.now(); refresh(); });
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  }
})();
