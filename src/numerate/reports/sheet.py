"""The style sheet of report pages and the frame around their content: one offline file, light and dark, for print."""

from html import escape

from numerate.reports.colour import (
    BORDER,
    BORDER_DARK,
    COLORMAP_DARK,
    COLORMAP_LIGHT,
    SERIES,
    SERIES_DARK,
    colormap,
    format_hex_color,
    text_color,
)

_TOKENS_LIGHT = "--page:#fdfcf9;--card:#ffffff;--text:#1c1e24;--quiet:#63666f;--line:#e2dfd6;--soft:#f3f1ea;"
_TOKENS_DARK = "--page:#14161b;--card:#1a1d24;--text:#e8e6df;--quiet:#9a9ea9;--line:#2f333d;--soft:#22262f;"

_RULES = """
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{
  margin:0; background:var(--page); color:var(--text);
  font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
}
main{max-width:1200px;margin:0 auto;padding:2.2rem 1.25rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:.1rem 0 .9rem;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:1.08rem;margin:2.6rem 0 .8rem;padding-top:.9rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:0 0 .5rem;font-weight:600}
h3 .quiet{font-weight:400;margin-left:.5rem}
p{margin:.5rem 0;max-width:76ch}
.over{color:var(--quiet);font-size:.82rem;margin:0}
.summary{
  font-size:1.16rem; line-height:1.5; max-width:72ch; margin:0 0 1.3rem; padding-left:1rem;
  border-left:4px solid var(--frame);
}
.warning{max-width:90ch;margin:0 0 1rem;padding:.5rem 1rem;background:var(--soft);border-left:4px solid var(--text)}
.quiet,figcaption{color:var(--quiet);font-size:.85rem}
figcaption{margin-top:.5rem;max-width:80ch}
figure{margin:0;min-width:0}
.panels{display:grid;gap:1.6rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,19rem),1fr));align-items:start}
.small .axis{display:none}
.small h3{line-height:1.3}
.small h3 .quiet{margin:0}
.small{grid-template-columns:repeat(auto-fill,minmax(min(100%,10rem),1fr));gap:1.1rem;margin-bottom:1.2rem}
.facts{display:flex;flex-wrap:wrap;gap:.5rem 2.2rem;margin:.2rem 0 1.4rem;padding:0}
.facts div{min-width:6rem}
.facts dt{color:var(--quiet);font-size:.78rem}
.facts dd{margin:0;font-size:1.12rem;font-variant-numeric:tabular-nums}
.map-box{container-type:inline-size}
table.map{
  border-collapse:collapse; table-layout:fixed; width:100%; font-variant-numeric:tabular-nums;
  font-size:min(.8rem,calc(100cqw/var(--n)*.4)); line-height:1;
}
table.map th{font-weight:400;color:var(--quiet);padding:.15em 0;text-align:center}
table.map td{
  position:relative; padding:0; text-align:center; height:calc(100cqw/var(--n)); background:var(--l);
  color:var(--i); cursor:default;
}
table.map td.none{color:var(--quiet)}
table.map.sparse th{font-size:.68rem;line-height:0;white-space:nowrap;padding:0}
table.map.sparse tr:first-child th{line-height:1.5}
table.map.sparse col:first-child{width:1.5rem}
table.map td.off{background:none}
table.map td:hover{outline:2px solid var(--text);outline-offset:-2px}
table.map .t{border-top:3px solid var(--frame)}
table.map .b{border-bottom:3px solid var(--frame)}
table.map .s{border-left:3px solid var(--frame)}
table.map .e{border-right:3px solid var(--frame)}
table.map td.seen{text-decoration:underline dotted;text-underline-offset:.2em}
table.map td[data-tip]:hover::after{
  content:attr(data-tip); position:absolute; z-index:9; bottom:calc(100% + 6px); left:0; width:max-content;
  max-width:min(19rem,calc(100cqw*.62)); padding:.45rem .6rem; background:var(--text); color:var(--page);
  font-size:.8rem; line-height:1.4; text-align:left; white-space:pre-line; border-radius:4px; pointer-events:none;
}
table.map td.far[data-tip]:hover::after{left:auto;right:0}
svg.small-map{width:100%;height:auto;display:block;overflow:visible}
svg.small-map image{image-rendering:pixelated}
svg.small-map .dark{display:none}
svg.small-map .frame{fill:none;stroke:var(--frame);stroke-width:2;vector-effect:non-scaling-stroke}
.axis{color:var(--quiet);font-size:.78rem;text-align:center;margin:.25rem 0 0}
.scale{
  display:flex; align-items:center; flex-wrap:wrap; gap:.5rem 1.4rem; color:var(--quiet); font-size:.82rem;
  margin:.9rem 0 0; max-width:none;
}
.scale i{
  display:inline-block; width:11rem; height:.75rem; background:var(--ramp); vertical-align:middle; margin:0 .5rem;
  border:1px solid var(--line);
}
.scale b{
  display:inline-block; width:.95rem; height:.95rem; border:3px solid var(--frame); vertical-align:middle;
  margin-right:.45rem;
}
.scale u{text-underline-offset:.2em;text-decoration:underline dotted}
svg.chart{width:100%;max-width:30rem;height:auto;display:block;overflow:visible}
svg.chart text{fill:var(--quiet);font-size:12px;font-family:inherit}
svg.chart .grid{stroke:var(--line);stroke-width:1}
svg.chart .axis-line{stroke:var(--quiet);stroke-width:1}
svg.chart .inside{fill:var(--soft)}
svg.chart .limit{stroke:var(--frame);stroke-width:2}
svg.chart text.limit-text{fill:var(--frame);stroke:none}
svg.chart .line{fill:none;stroke:var(--c);stroke-width:2.2;stroke-linejoin:round}
svg.chart .seed{fill:none;stroke:var(--c);stroke-width:1;opacity:.65}
svg.chart .band{fill:var(--c);opacity:.2}
svg.chart .dot{fill:var(--c)}
svg.chart .target{fill:transparent}
svg.chart .bar{stroke:var(--c);stroke-width:5}
svg.mark{width:.8rem;height:.8rem;vertical-align:-.08rem;margin-right:.4rem}
svg.mark .dot{fill:var(--c)}
.key+.panels{margin-top:.9rem}
.tables{display:flex;flex-wrap:wrap;gap:1.1rem 1.6rem;align-items:flex-start}
.tables>div{min-width:0;max-width:100%;flex:1 1 40rem}
.tables h4:first-child{margin-top:.3rem}
h3.measure{margin:1.7rem 0 .5rem}
h4{font-size:.9rem;margin:0 0 .1rem;font-weight:600;color:var(--quiet)}
table.parts th.num{white-space:normal;max-width:7.5rem;overflow-wrap:break-word}
table.parts td:first-child{min-width:7.5rem;overflow-wrap:break-word}
table.parts .whole td{font-style:italic}
table.parts td,table.parts th{padding-right:.7rem;font-size:.85rem}
table.parts td .quiet{font-size:.72rem}
.tables table.parts{table-layout:fixed;width:100%;min-width:27rem;max-width:54rem}
.tables table.parts th:first-child{width:9.5rem}
.tables table.parts th.when{width:4.4rem}
table.parts td{line-height:1.3}
table.parts td.num{white-space:normal}
.pairs table.data td,.pairs table.data th{padding-right:1rem;white-space:normal}
.runs table.data td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:9rem}
.runs table.data td,.runs table.data th{padding-right:1.1rem}
table.parts td.marked{padding-left:1.2rem;text-indent:-1.2rem}
svg.strip{width:100%;min-width:8rem;max-width:13rem;height:auto;display:block;overflow:visible}
svg.strip.broad{min-width:13rem;max-width:24rem}
svg.strip text{fill:var(--quiet);font-size:10px;font-family:inherit}
svg.strip .grid{stroke:var(--line);stroke-width:1}
svg.strip .bar{stroke:var(--c);stroke-width:4;opacity:.55}
svg.strip.broad .bar{stroke-width:2.2}
svg.strip .span{stroke:var(--c);stroke-width:1.2}
svg.strip .tick{stroke:var(--c);stroke-width:1.6}
svg.strip .each{stroke:var(--c);stroke-width:1.3;opacity:.75}
svg.strip .missed{stroke:var(--quiet);stroke-width:1.3;fill:none}
svg.strip .dot{fill:var(--c)}
svg.strip .target{fill:transparent}
.points .under{font-size:.84rem;line-height:1.2;margin-top:.12rem}
.points table.data{width:100%}
.points table.data th,.points table.data td{padding-right:1.1rem}
.points table.data td{vertical-align:middle}
.points table.data td:first-child{white-space:normal;min-width:7rem;line-height:1.25;overflow-wrap:anywhere}
.points table.data tr:last-child td{border:0;padding-top:.2rem}
.points tr.inside{background:var(--soft)}
.points tr.region th{border-bottom:1px solid var(--line);padding-top:.6rem}
.points tr.limit th{border-top:2px solid var(--frame)}
.points td.whole{font-style:italic}
.baseline{--c:var(--quiet)}
.neutral{--c:var(--text)}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.85rem;margin:.3rem 0 0;padding:0;list-style:none}
.key svg{width:2.2rem;height:.8rem;vertical-align:middle;margin-right:.4rem}
.key .point svg{width:.8rem}
.key .line{stroke:var(--c);stroke-width:2.4}
.key .dot{fill:var(--c)}
.scroll{
  overflow-x:auto;
  background:linear-gradient(270deg,var(--page) 40%,transparent) 100% 0/3rem 100% no-repeat local,
    linear-gradient(270deg,var(--line),transparent) 100% 0/1rem 100% no-repeat scroll;
}
table.data{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
table.data th{
  font-weight:600; text-align:left; vertical-align:bottom; border-bottom:1.5px solid var(--text);
  padding:.35rem 1.9rem .35rem 0;
}
table.data td{padding:.34rem 1.9rem .34rem 0;border-bottom:1px solid var(--line);vertical-align:top}
table.data .num{text-align:right;white-space:nowrap}
table.data td:first-child{white-space:nowrap}
table.data td .quiet{font-size:.78rem}
table.tight th,table.tight td{padding-right:1.05rem}
table.tight td:first-child{white-space:normal;min-width:9rem}
table.data td.mono,code,pre{
  font-family:ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace; font-size:.84rem;
}
table.data td.mono{overflow-wrap:anywhere;min-width:8rem}
table.data td.mono:first-child{overflow-wrap:normal;white-space:nowrap}
table.data th{white-space:nowrap}
pre{background:var(--soft);padding:.8rem 1rem;overflow-x:auto;margin:.4rem 0;border-radius:4px;line-height:1.45}
.right{color:var(--good)}
.wrong{color:var(--frame)}
mark{background:none;color:var(--frame);text-decoration:underline;text-underline-offset:.2em}
details summary{cursor:pointer}
details{margin:.5rem 0}
ul.reading{padding-left:1.1rem;margin:.4rem 0;max-width:82ch}
ul.reading li{margin:.35rem 0}
a{color:inherit}
@media (max-width:520px){
  main{padding:1.2rem .9rem 3rem}
  table.data td{min-width:5.5rem}
  table.data td.mono{min-width:12rem}
  h1{font-size:1.35rem}
  .summary{font-size:1.04rem}
}
@media print{
  main{max-width:none;padding:0}
  h2{break-after:avoid}
  figure,tr{break-inside:avoid}
  details>summary{display:none}
}
"""


def style() -> str:
    """All rules of a page; colors are variables, so that dark pages and printing change only those."""
    light = _TOKENS_LIGHT + f"--frame:{BORDER};--good:#1a7f4b;" + _ramp(COLORMAP_LIGHT)
    dark = _TOKENS_DARK + f"--frame:{BORDER_DARK};--good:#57c98a;" + _ramp(COLORMAP_DARK)
    series = "".join(f".c{i}{{--c:{color}}}" for i, color in enumerate(SERIES))
    series_dark = "".join(f".c{i}{{--c:{colour}}}" for i, colour in enumerate(SERIES_DARK))
    cells = "".join(_cell_colors(percent) for percent in range(101))
    swap = "table.map td{background:var(--d);color:var(--j)}"
    swap += "table.map td.none{color:var(--quiet)}table.map td.off{background:none}"
    swap += "svg.small-map .light{display:none}svg.small-map .dark{display:inline}"
    return (
        f":root{{{light}}}{series}{cells}{_RULES}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}{series_dark}{swap}}}"
        "@media print{:root{color-scheme:light}}"
    )


def _cell_colors(percent: int) -> str:
    """The colors of the cells of a heat map that have so many per cent: their own, light and dark, and the ink's."""
    light, dark = colormap(percent / 100, COLORMAP_LIGHT), colormap(percent / 100, COLORMAP_DARK)
    names = zip("ldij", (light, dark, text_color(light), text_color(dark)), strict=True)
    return f".p{percent}{{{';'.join(f'--{name}:{format_hex_color(color)}' for name, color in names)}}}"


def _ramp(stops: tuple[str, ...]) -> str:
    return f"--ramp:linear-gradient(90deg,{','.join(stops)});"


def page(title: str, body: str) -> str:
    """A complete, self-contained page, without scripts other than those of the body."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style()}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
