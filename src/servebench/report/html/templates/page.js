"use strict";
(() => {
  const unpacked = text => {
    const bytes = Uint8Array.from(atob(text), one => one.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  };
  const state = {stat: "p50", hidden: []}, views = [];
  const apply = view => { view.signal("stat", state.stat).signal("hidden", state.hidden.slice()).runAsync(); };
  const draw = async box => {
    const spec = await unpacked(box.dataset.spec);
    const {view} = await vegaEmbed(box, spec, {mode: "vega-lite", ast: true, actions: false, renderer: "svg", logLevel: 1});
    views.push(view);
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", spec.description);
    box.closest(".panel").classList.add("drawn");
    apply(view);
  };
  const seen = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
  }, {rootMargin: "600px"});
  // a table that goes on to the right says so, and scrolls by keys
  const sized = new ResizeObserver(entries => {
    for (const {target} of entries) {
      const cut = target.scrollWidth > target.clientWidth + 1;
      target.classList.toggle("cut", cut);
      if (!cut) { target.removeAttribute("tabindex"); continue; }
      target.tabIndex = 0;
      target.setAttribute("role", "group");
      target.setAttribute("aria-label", target.querySelector("caption, img")?.textContent || "picture");
    }
  });
  document.querySelectorAll(".wide").forEach(box => sized.observe(box));
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(one => { one.open = true; }));
  // an older browser keeps the pictures
  if (!("DecompressionStream" in window)) return;
  document.documentElement.classList.add("live");
  document.querySelectorAll("[data-spec]").forEach(box => seen.observe(box));
  document.addEventListener("change", event => {
    const input = event.target;
    if (input.name === "stat") state.stat = input.value;
    else if (input.dataset.run !== undefined) {
      state.hidden = state.hidden.filter(name => name !== input.dataset.run);
      if (!input.checked) state.hidden.push(input.dataset.run);
      document.querySelectorAll("[data-run]").forEach(one => { one.checked = !state.hidden.includes(one.dataset.run); });
    } else return;
    document.querySelectorAll(".stat").forEach(one => { one.textContent = state.stat; });
    views.forEach(apply);
  });
})();
