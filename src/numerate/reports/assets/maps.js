(function(){
"use strict";
const root=document.getElementById("maps"),all=JSON.parse(document.getElementById("maps-data").textContent);
if(!root||!all.records.length)return;
const make=(tag,words,parent)=>{const e=document.createElement(tag);if(words!==undefined)e.textContent=words;
  if(parent)parent.append(e);return e};
const six={};"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".split("").forEach((c,i)=>six[c]=i);
const dark=matchMedia("(prefers-color-scheme: dark)");
const still=new Map();
const state={record:0,layer:0,sort:0,head:0,row:0,column:0,scale:{shares:"root",relations:"linear"}};

function heads(part){           // the numbers of a part, a Float32Array for each head
  if(still.has(part))return still.get(part);
  const found=[],d=part.data;let at=0;
  for(let h=0;h<part.heads;h++){
    const w=new Float32Array(part.rows*part.columns);
    for(let i=0;i<part.rows;i++){
      const end=part.causal?i+1:part.columns;
      for(let j=0;j<end;j++,at+=2)
        w[i*part.columns+j]=part.low+(part.high-part.low)*(64*six[d[at]]+six[d[at+1]])/all.levels;
    }
    found.push(w);
  }
  if(part.heads>1){             // and their mean, which comes first
    const mean=new Float32Array(part.rows*part.columns);
    for(const w of found)for(let k=0;k<w.length;k++)mean[k]+=w[k]/part.heads;
    found.unshift(mean);
  }
  still.set(part,found);
  return found;
}
const record=()=>all.records[state.record],layer=()=>record().layers[state.layer],part=()=>layer().maps[state.sort];
const weights=()=>heads(part())[state.head];
const named=(p,h)=>p.heads===1?(p.map_type==="relations"?"relation 0":"head 0"):h===0?"mean":
  (p.map_type==="relations"?"relation ":"head ")+(h-1);
const seen=(p,i,j)=>!p.causal||j<=i;
function number(x){
  const size=Math.abs(x);
  return size===0?"0":size<0.0005?x.toExponential(0):x.toFixed(size<0.1?4:size<10?3:1);
}

function parse(hex){return[1,3,5].map(i=>parseInt(hex.slice(i,i+2),16))}
function between(stops,share){
  const at=Math.min(Math.max(share,0),1)*(stops.length-1),i=Math.min(Math.floor(at),stops.length-2),p=at-i;
  const a=parse(stops[i]),b=parse(stops[i+1]);
  return a.map((x,k)=>Math.round(x+(b[k]-x)*p));
}
const kind=p=>p.map_type==="relations"?"relations":"shares";
function reach(w){              // the number farthest from 0, which has the strongest colour
  let most=0;for(const x of w)most=Math.max(most,Math.abs(x));
  return most||1;
}
function colour(x,most,root){
  const set=dark.matches?all.dark:all.light,share=Math.abs(x)/most;
  return between(x<0?set.below:set.above,root?Math.sqrt(share):share);
}
const css=c=>`rgb(${c[0]},${c[1]},${c[2]})`;
const ink=c=>(0.299*c[0]+0.587*c[1]+0.114*c[2])>140?"#000":"#fff";

function picture(p,w){          // one pixel per pair
  const scale=state.scale[kind(p)],root=scale==="root";let most=reach(w);
  const c=make("canvas");c.width=p.columns;c.height=p.rows;
  const g=c.getContext("2d"),image=g.createImageData(p.columns,p.rows);
  for(let i=0;i<p.rows;i++){
    if(scale==="row")most=reach(w.subarray(i*p.columns,(i+1)*p.columns));
    for(let j=0;j<p.columns;j++){
      const k=4*(i*p.columns+j);
      if(!seen(p,i,j))continue;
      const [r,gr,b]=colour(w[i*p.columns+j],most,root);
      image.data[k]=r;image.data[k+1]=gr;image.data[k+2]=b;image.data[k+3]=255;
    }
  }
  g.putImageData(image,0,0);
  return c;
}

const pick=make("div",undefined,root);pick.className="pick";
function select(words){
  const label=make("label",words,pick),box=make("select",undefined,label);
  return box;
}
const records=select("prompt"),layers=select("layer"),sorts=select("map"),scales=select("colors");
const SCALES={root:"square root",linear:"linear",row:"per row"};
const strip=make("div",undefined,root);strip.className="heads";
const sight=make("div",undefined,root);sight.className="sight";
const box=make("div",undefined,sight);box.className="box";
const canvas=make("canvas",undefined,box);canvas.className="map";canvas.tabIndex=0;
const scale=make("p",undefined,box);scale.className="quiet";
const side=make("div",undefined,sight);
const readout=make("p",undefined,side);readout.className="readout";readout.setAttribute("aria-live","polite");
const title=make("h3",undefined,side),text=make("div",undefined,side);text.className="text";
const title2=make("h3",undefined,side),bars=make("table",undefined,side);bars.className="bars";
if(all.records.length===1)records.parentNode.hidden=true;

function options(box,names,at){
  box.replaceChildren();
  names.forEach((name,i)=>{const o=make("option",name,box);o.value=i;});
  box.value=at;
}
function labels(p){
  const keep=t=>t||[];
  const q=layer().component==="encoder"?keep(record().source):record().tokens;
  const k=p.map_type==="symbols"?Array.from({length:p.columns},(_,i)=>String(i)):
    p.map_type==="cross attention"?keep(record().source):q;
  return[q,k];
}

function menus(){
  options(records,all.records.map(r=>(r.prompt||"the beginning")+" \u00b7 step "+r.step),state.record);
  options(layers,record().layers.map(l=>l.name),state.layer);
  options(sorts,layer().maps.map(m=>m.map_type),state.sort);
  sorts.parentNode.hidden=layer().maps.length<2;
  const p=part();
  options(scales,Object.values(SCALES),Object.keys(SCALES).indexOf(state.scale[kind(p)]));
  strip.replaceChildren();
  heads(p).forEach((w,h)=>{
    const b=make("button",undefined,strip),small=picture(p,w);
    b.type="button";b.append(small);make("span",named(p,h),b);
    b.setAttribute("aria-pressed",h===state.head);
    b.onclick=()=>{state.head=h;menus();draw();};
  });
  strip.hidden=heads(p).length<2;
}

let grid={x:0,y:0,size:1};
function draw(){
  const p=part(),w=weights(),[queries,keys]=labels(p),most=reach(w);
  state.row=Math.min(state.row,p.rows-1);state.column=Math.min(state.column,p.columns-1);
  const style=getComputedStyle(root),fore=style.getPropertyValue("--text"),quiet=style.getPropertyValue("--quiet");
  const frame=style.getPropertyValue("--frame");
  const one=p.columns>110;      // too many for anything beside them
  sight.classList.toggle("one",one);
  const wide=Math.min(one?1150:640,Math.max(280,root.clientWidth-24));
  let size=Math.min(one?4:36,Math.max(3,Math.floor((wide-90)/Math.max(p.columns,p.rows))));
  if(p.map_type==="symbols")size=Math.min(24,Math.max(3,Math.floor((wide-90)/p.columns)));
  const letters=Math.max(7.5,Math.min(12,size*0.8)),every=Math.ceil((letters+1)/size);
  const font=`${letters}px ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace`;
  const g=canvas.getContext("2d");
  g.font=font;
  const short=t=>t.length>14?t.slice(0,13)+"\u2026":t;
  const room=names=>Math.ceil(Math.max(...names.map(t=>g.measureText(short(t)).width),8))+8;
  const upright=Math.max(...keys.map(t=>g.measureText(short(t)).width))<size-2;
  const left=room(queries),top=upright?letters+9:room(keys);
  grid={x:left,y:top,size};
  const width=left+p.columns*size+4,height=top+p.rows*size+4,dense=window.devicePixelRatio||1;
  canvas.width=Math.round(width*dense);canvas.height=Math.round(height*dense);
  canvas.style.width=width+"px";canvas.style.height=height+"px";
  g.setTransform(dense,0,0,dense,0,0);
  g.imageSmoothingEnabled=false;
  const small=picture(p,w),pixels=small.getContext("2d").getImageData(0,0,p.columns,p.rows).data;
  g.drawImage(small,left,top,p.columns*size,p.rows*size);
  g.textBaseline="middle";
  if(size>=30){
    g.font=font.replace(/^[\d.]+/,"9.5");g.textAlign="center";
    for(let i=0;i<p.rows;i++)for(let j=0;j<p.columns;j++)if(seen(p,i,j)){
      const k=4*(i*p.columns+j),x=w[i*p.columns+j];
      g.fillStyle=ink(pixels.slice(k,k+3));
      g.fillText(Math.abs(x)>=9.95?x.toFixed(0):Math.abs(x)>=1||x<0?x.toFixed(1):x.toFixed(2).replace(/^0/,""),
        left+(j+0.5)*size,top+(i+0.5)*size);
    }
  }
  g.font=font;
  for(let i=0;i<p.rows;i++){
    if(i%every&&i!==state.row)continue;
    if(every>1&&i!==state.row&&Math.abs(i-state.row)*size<letters+1)continue;
    g.fillStyle=i===state.row?frame:fore;g.textAlign="right";
    g.fillText(short(queries[i]),left-5,top+(i+0.5)*size);
  }
  for(let j=0;j<p.columns;j++){
    if(j%every&&j!==state.column)continue;
    if(every>1&&j!==state.column&&Math.abs(j-state.column)*size<letters+1)continue;
    g.fillStyle=j===state.column?frame:fore;
    g.save();g.translate(left+(j+0.5)*size,top-5);
    if(upright){g.textAlign="center";g.fillText(short(keys[j]),0,-letters/2+1);}
    else{g.rotate(-Math.PI/2);g.textAlign="left";g.fillText(short(keys[j]),0,0);}
    g.restore();
  }
  const from=layer().component==="encoder"?null:record().answer_start;
  if(from){
    g.strokeStyle=quiet;g.setLineDash([4,3]);g.beginPath();
    const y=top+from*size;g.moveTo(left,y);g.lineTo(left+p.columns*size,y);
    if(p.map_type!=="symbols"&&p.map_type!=="cross attention"){
      const x=left+from*size;g.moveTo(x,top);g.lineTo(x,top+p.rows*size);}
    g.stroke();g.setLineDash([]);
  }
  g.strokeStyle=frame;g.lineWidth=size>6?2:1;
  g.strokeRect(left+state.column*size,top+state.row*size,size,size);
  g.lineWidth=1;g.globalAlpha=0.5;g.strokeRect(left,top+state.row*size,p.columns*size,size);g.globalAlpha=1;
  canvas.setAttribute("role","img");
  canvas.setAttribute("aria-label",`${layer().name}, ${p.map_type}, ${named(p,state.head)}: ${p.rows} by ${p.columns}`);
  tell(p,w,queries,keys,most);
}

function tell(p,w,queries,keys,most){
  const at=state.row*p.columns+state.column,there=seen(p,state.row,state.column);
  const related=p.map_type==="relations";
  const key=p.map_type==="symbols"?`symbol ${state.column}`:`${keys[state.column]} (${state.column})`;
  readout.replaceChildren();
  make("strong",there?number(w[at]):"masked",readout);
  readout.append(` \u2003${queries[state.row]} (${state.row}) \u2192 ${key}`);
  const how=state.scale[kind(p)],set=dark.matches?all.dark:all.light,plain=x=>String(+number(x));
  const ends=how==="row"?[p.low<0?"farthest below 0":"0","most of its row"]:[p.low<0?plain(-most):"0",plain(most)];
  scale.replaceChildren(ends[0]);
  const ramp=make("span",undefined,scale);ramp.className="ramp";
  const stops=p.low<0?[...set.below].reverse().concat(set.above.slice(1)):set.above;
  ramp.style.background=`linear-gradient(90deg,${stops.join(",")})`;
  scale.append(ends[1]);
  if(how==="root")scale.append(` (${plain(most/4)} in the middle)`);
  const row=[...keys.keys()].filter(j=>seen(p,state.row,j));
  const linked=p.map_type!=="symbols",top=reach(w.subarray(state.row*p.columns,(state.row+1)*p.columns));
  const verb=related?"relates to":"attends to";
  // Uniform attention has small weights.
  const strong=related?top:Math.max(top,Math.min(1,4/row.length));
  title.textContent=linked?`What ${queries[state.row]} (${state.row}) ${verb}`:"Tokens (click to select)";
  text.replaceChildren();
  (linked?keys:queries).forEach((name,j)=>{
    const s=make("span",name,text),mine=linked?seen(p,state.row,j):false;
    if(mine){const c=colour(w[state.row*p.columns+j],strong);s.style.background=css(c);s.style.color=ink(c);
      s.title=number(w[state.row*p.columns+j]);}
    if(p.map_type!=="cross attention"&&j===state.row)s.className="at";
    s.onclick=()=>{if(p.map_type==="cross attention")state.column=j;else state.row=j;draw();};
  });
  title2.textContent=related?"Largest by absolute value":"Largest weights";
  bars.replaceChildren();
  const order=row.sort((a,b)=>Math.abs(w[state.row*p.columns+b])-Math.abs(w[state.row*p.columns+a])).slice(0,8);
  for(const j of order){
    const x=w[state.row*p.columns+j],line=make("tr",undefined,bars);
    make("td",p.map_type==="symbols"?`symbol ${j}`:`${keys[j]} (${j})`,line);
    make("td",number(x),line);
    const bar=make("i",undefined,make("td",undefined,line));
    bar.style.width=(9*Math.abs(x)/top)+"rem";bar.style.background=css(colour(x<0?-0.65:0.65,1));
  }
}

function place(event){
  const edge=canvas.getBoundingClientRect(),p=part();
  const j=Math.floor((event.clientX-edge.left-grid.x)/grid.size);
  const i=Math.floor((event.clientY-edge.top-grid.y)/grid.size);
  if(i<0||j<0||i>=p.rows||j>=p.columns||(i===state.row&&j===state.column))return;
  state.row=i;state.column=j;draw();
}
canvas.onmousemove=place;canvas.onclick=place;
function last(){const p=part();state.row=p.rows-1;let most=-1;state.column=0;
  const w=weights();for(let j=0;j<p.columns;j++){const x=Math.abs(w[state.row*p.columns+j]);
    if(seen(p,state.row,j)&&x>most){most=x;state.column=j;}}}
records.onchange=()=>{state.record=+records.value;state.layer=state.sort=state.head=0;last();menus();draw();};
layers.onchange=()=>{const sort=part().map_type;state.layer=+layers.value;
  state.sort=Math.max(0,layer().maps.findIndex(m=>m.map_type===sort));
  state.head=Math.min(state.head,heads(part()).length-1);menus();draw();};
sorts.onchange=()=>{state.sort=+sorts.value;state.head=0;menus();draw();};
scales.onchange=()=>{state.scale[kind(part())]=Object.keys(SCALES)[+scales.value];menus();draw();};
canvas.onkeydown=event=>{
  const p=part(),count=heads(p).length,moves={ArrowUp:[-1,0],ArrowDown:[1,0],ArrowLeft:[0,-1],ArrowRight:[0,1]};
  const step=moves[event.key];
  if(step){state.row=Math.min(Math.max(state.row+step[0],0),p.rows-1);
    state.column=Math.min(Math.max(state.column+step[1],0),p.columns-1);draw();}
  else if(event.key==="n"||event.key==="p"){state.head=(state.head+(event.key==="n"?1:count-1))%count;menus();draw();}
  else if(event.key==="N"||event.key==="P"){const many=record().layers.length;
    layers.value=(state.layer+(event.key==="N"?1:many-1))%many;layers.onchange();}
  else return;
  event.preventDefault();
};
dark.addEventListener("change",()=>{menus();draw();});
let wait=0;addEventListener("resize",()=>{clearTimeout(wait);wait=setTimeout(draw,120);});
const hash=/^#maps=([\d,]+)$/.exec(location.hash);   // #maps=prompt,layer,map,head
if(hash){
  const [r,l,s,h]=hash[1].split(",").map(Number);
  if(all.records[r])state.record=r;
  if(record().layers[l])state.layer=l;
  if(layer().maps[s])state.sort=s;
  if(heads(part())[h])state.head=h;
}
last();menus();draw();
})();
