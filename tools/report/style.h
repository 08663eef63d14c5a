#pragma once

namespace verbena::tools::report {

// Colors by the reader's own choice of light or dark; everything else follows from them.
inline constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --page: #fff; --panel: #f6f7f9; --ink: #16191d; --soft: #5a626c; --line: #d9dde2; --grid: #d9dde2;
  --link: #0b5cad; --good: #0a7a4b; --bad: #b3261e;
  --series-0: #0072b2; --series-1: #c44e00; --series-2: #00845f; --series-3: #b3568e; --series-4: #b07800; --series-5: #2c8ec4;
  --series-6: #6a6a6a; --series-7: #8c564b; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --panel: #1d2125; --ink: #e8eaed; --soft: #a3abb4; --line: #363c43;
  --grid: #363c43; --link: #7db8f0; --good: #57c795; --bad: #ff8a80;
  --series-0: #5aaee8; --series-1: #ff9a56; --series-2: #45cfa5; --series-3: #e59ac6; --series-4: #f2bf4a; --series-5: #8fd3fa;
  --series-6: #b5b5b5; --series-7: #cf9f94; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 84rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.25rem; margin: 0 0 .3rem; } h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p { margin: .3rem 0; } a { color: var(--link); } .soft { color: var(--soft); }
section { margin: 2rem 0 0; padding: 1.2rem 0 0; border-top: 1px solid var(--line); }
pre { margin: .5rem 0; padding: .6rem .8rem; background: var(--panel); border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .6rem 0; font-size: 14px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 0 2rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; margin: .8rem 0; }
.charts svg { width: 100%; height: auto; background: var(--panel); border-radius: 6px; }
.beside { display: flex; flex-wrap: wrap; gap: 0 3rem; } .beside > div { max-width: 100%; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: .22rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; font-weight: 600; } th span { display: block; font-weight: 400; color: var(--soft); }
th.text, td.text { text-align: left; } tbody tr:hover { background: var(--panel); }
.ok { color: var(--good); } .wrong { color: var(--bad); font-weight: 600; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--soft); }
)css";

}  // namespace verbena::tools::report
