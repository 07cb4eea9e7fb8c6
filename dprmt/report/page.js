// Values under the pointer, and sliders over tables of numbers. Without this script the page says the same.
"use strict";
const box = document.createElement("div");
box.id = "value";
box.hidden = true;
document.body.append(box);
const short = (value) => Number(value.toPrecision(4)).toString();

for (const svg of document.querySelectorAll("svg[data-points]")) {
  const series = JSON.parse(svg.dataset.points);
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / frame.width;
    const x = (event.clientX - frame.left) * scale, y = (event.clientY - frame.top) * scale;
    let best = null, nearest = 18;
    for (const line of series) {
      for (const [px, py, u, v] of line.points) {
        const distance = Math.hypot(px - x, py - y);
        if (distance < nearest) { nearest = distance; best = [line.label, u, v]; }
      }
    }
    box.hidden = best === null;
    if (best === null) return;
    box.textContent = `${best[0]}: ${short(best[1])}, ${short(best[2])}`;
    box.style.left = `${Math.min(event.clientX + 12, innerWidth - box.offsetWidth - 8)}px`;
    box.style.top = `${event.clientY + 14}px`;
  });
  svg.addEventListener("pointerleave", () => { box.hidden = true; });
}

for (const slider of document.querySelectorAll(".slider")) {
  const texts = JSON.parse(slider.dataset.texts);
  const input = slider.querySelector("input"), output = slider.querySelector("output");
  const show = () => { output.textContent = texts[Number(input.value)]; };
  input.addEventListener("input", show);
  slider.hidden = false;
  show();
}
