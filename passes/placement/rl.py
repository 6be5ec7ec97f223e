"""prototype"""
import time
from dataclasses import dataclass
import numpy as np
from heterps_compile.cost.evaluate import evaluate
from .polish import Cut, Polish
from .spans import find_spans
from .sampling import *

LEVELS = (1, 1.04, 1.1, 1.2, 1.35, 1.6, 2, 3, 5, 9, 16, 32, 64)
FACTORS = (1.0, 0.97, 0.92, 0.85, 1.03, 1.1)


SWEEP=tuple(2.0**(k/4) for k in range(-14,7) if k)

class Uniform:
    def __init__(self, problem, gen): self.p=problem; self.g=gen; self.rules=stage_rules(problem); L=problem.layer_count; self.z=np.zeros((L,problem.type_count)); self.b=np.full(L,-np.log(max(L/4-1,.5)))
    def draw(self, n): return draw_plans(self.z,self.b,self.rules,n,self.g)

class Search:
    def __init__(s, problem, gen):
        s.p=problem; s.gen=gen; s.best=np.inf; s.elites={}; s.evals=0
        s.spans=find_spans(problem); s.polish=Polish(s.spans); s.cut=None; s.speed=None
        s.pos_of=np.searchsorted(s.spans.positions,np.arange(problem.layer_count+1))
    def see(s, draws, ev, keep=6):
        s.evals+=len(ev.values)
        for o in np.argsort(ev.values)[:keep]:
            v=ev.values[o]
            if not np.isfinite(v): break
            m=draws.plan==o; c=Cut(s.pos_of[np.append(draws.first[m],draws.end[m][-1])],draws.type[m])
            s.note(c,v,ev.throughput[o])
    def note(s,c,v,x):
        s.elites[(tuple(c.bounds),tuple(c.types))]=(v,c,x)
        if v<s.best: s.best=v; s.cut=c; s.speed=x
        if len(s.elites)>200:
            for k in sorted(s.elites,key=lambda k:s.elites[k][0])[64:]: del s.elites[k]
    def value(s,cuts):
        L=s.p.layer_count; ty=np.zeros((len(cuts),L),int); bg=np.zeros((len(cuts),L),bool)
        for n,c in enumerate(cuts):
            e=s.spans.positions[c.bounds]; ty[n]=np.repeat(c.types,np.diff(e)); bg[n,e[:-1]]=True
        s.evals+=len(cuts)
        return evaluate(s.p,ty,bg)
    def refine(s,c,x,factors=FACTORS):
        v=np.inf
        while True:
            cs=[s.polish.descend(c,s.p.batch/x*f*(1+1e-9)) for f in factors]
            ev=s.value(cs); o=int(np.argmin(ev.values))
            for k in range(len(cs)):
                if np.isfinite(ev.values[k]): s.note(cs[k],ev.values[k],ev.throughput[k])
            if not ev.values[o]<v*(1-1e-9): return c,v,x
            c,v,x=cs[o],ev.values[o],ev.throughput[o]
    def cross(s,c,d,k):
        """put plan k of draws d in a window of cut c"""
        L=s.p.layer_count
        m=d.plan==k; b2=s.pos_of[np.append(d.first[m],d.end[m][-1])]; t2=d.type[m]
        P=len(s.spans.positions); a,b=np.sort(s.gen.integers(0,P,2)); 
        a=min(a,P-2); b=max(b,a+1)
        t=lambda bb,tt: np.repeat(tt,np.diff(bb))
        ty=t(c.bounds,c.types).copy(); st=np.zeros(P-1,bool); st[c.bounds[:-1]]=True; st2=np.zeros(P-1,bool); st2[b2[:-1]]=True
        ty[a:b]=t(b2,t2)[a:b]; st[a:b]=st2[a:b]; st[a]=True
        if b<P-1: st[b]=True
        st[1:]|=ty[1:]!=ty[:-1]; st[0]=True
        bounds=np.append(np.flatnonzero(st),P-1); return Cut(bounds,ty[bounds[:-1]])

    def resplit(s,c):
        """re-split a run of stages of one type into another number of equal ones"""
        edge=np.flatnonzero(np.append(True,c.types[1:]!=c.types[:-1])); edge=np.append(edge,len(c.types))
        r=s.gen.integers(len(edge)-1); i,j=int(edge[r]),int(edge[r+1]); n=j-i; t=c.types[i]
        m=max(1,n+int(s.gen.choice([-2,-1,1,2],p=[.15,.35,.35,.15])))
        a,b=c.bounds[i],c.bounds[j]
        w=np.maximum(s.spans.compute_s[a:b+1,t]-s.spans.compute_s[a,t], s.spans.data_s[a:b+1,t]-s.spans.data_s[a,t])
        inner=a+np.searchsorted(w,w[-1]*np.arange(1,m)/m); inner=np.unique(inner[(inner>a)&(inner<b)])
        return c.replaced(i,j,inner.tolist(),[int(t)]*(len(inner)+1)), n/(len(inner)+1)

def run(problem, seed, source='policy', rounds=120, kicks=40, learning=None, policy=None, starts=8, sweep_on=True, spread=.12, near=1.02, deadline=None, kick='start', temp=2.0, split=.3, explore=.0):
    t0=time.process_time(); gen=np.random.default_rng(seed); s=Search(problem,gen); info={}
    x0=problem.min_throughput
    if source=='uniform':
        u=Uniform(problem,gen)
        for r in range(rounds+len(LEVELS)//4):
            d=u.draw(64); s.see(d,evaluate(problem,d.types,d.begins))
        draw=u.draw
    else:
        import copy
        import torch
        from .policy import policy_input
        from .reinforce import Learner, Learning
        le=Learner(problem,copy.deepcopy(policy),learning or Learning(),gen)
        with torch.no_grad(): z,b=le.policy(policy_input(problem,[x0*f for f in LEVELS]))
        z=z0=z.numpy().astype(float); b=b0=b.numpy().astype(float); found=[]
        for k,f in enumerate(LEVELS):
            d=draw_plans(z[:,k],b[:,k],le.rules,16,gen); ev=evaluate(problem,d.types,d.begins); s.see(d,ev); found.append((ev.values.min(),f))
        found.sort(); le.aim(x0*found[0][1]); info['aim']=found[0][1]
        for r in range(rounds):
            d,ev=le.round(); s.see(d,ev)
            if r and r%30==0 and s.speed: le.aim(s.speed)
        def draw(n):
            with torch.no_grad(): z,b=le.policy(le._features)
            parts=[]
            z1,b1=z[:,0].numpy().astype(float),b[:,0].numpy().astype(float)
            if kick=='learned': return draw_plans(z1,b1,le.rules,n,gen)
            if kick=='warm': return draw_plans(z1/temp,b1/temp,le.rules,n,gen)
            if kick=='mix': 
                us=Uniform(problem,gen)
                w=0.5
                zz=[draw_plans(z1/temp,b1/temp,le.rules,n//2,gen), us.draw(n-n//2)]
            if kick=='start':
                k=[i for i in range(len(LEVELS))]; per=-(-n//len(k)); zz=[draw_plans(z0[:,i]/temp,b0[:,i]/temp,le.rules,per,gen) for i in k]
            if kick=='all':
                k=range(0,len(LEVELS),3); per=-(-n//15); zz=[draw_plans(z0[:,i]/temp,b0[:,i]/temp,le.rules,per,gen) for i in k]+[draw_plans(z1/temp,b1/temp,le.rules,n//3,gen), Uniform(problem,gen).draw(n//3+1)]
            o=0;out=[[] for _ in range(6)]
            for d in zz:
                for q,a in enumerate((d.types,d.begins,d.plan+o,d.first,d.end,d.type)): out[q].append(a)
                o+=len(d.types)
            D=Draws(*map(np.concatenate,out))
            perm=gen.permutation(o); inv=np.empty(o,int); inv[perm]=np.arange(o)
            return Draws(D.types,D.begins,inv[D.plan],D.first,D.end,D.type)
    info['before']=s.best; info['t_policy']=time.process_time()-t0
    def sweep(c,x):
        cs=[s.polish.descend(c,problem.batch/x*f) for f in SWEEP]; ev=s.value(cs)
        for k in range(len(cs)):
            if np.isfinite(ev.values[k]): s.note(cs[k],ev.values[k],ev.throughput[k])
    for v,c,x in sorted(s.elites.values(),key=lambda e:e[0])[:starts]: s.refine(c,x,(1.0,))
    if s.cut is not None:
        s.refine(s.cut,s.speed); 
        if sweep_on: 
            v0=s.best; sweep(s.cut,s.speed)
            if s.best<v0: s.refine(s.cut,s.speed)
        info['climb']=s.best
        d=draw(kicks); k=0
        for k in range(kicks):
            v0=s.best; base,x=s.cut,s.speed
            if gen.random()<explore:
                es=sorted(s.elites.values(),key=lambda e:e[0])[:8]; _,base,x=es[gen.integers(len(es))]
            f=np.exp(gen.laplace(0,spread))
            if gen.random()<split:
                c,q=s.resplit(base)
                if gen.random()<.5: f=f**.3*q
            else: c=s.cross(base,d,k)
            c2=s.polish.descend(c,problem.batch/x*f); ev=s.value([c2]); 
            if np.isfinite(ev.values[0]): s.note(c2,ev.values[0],ev.throughput[0])
            if ev.values[0]<near*v0: s.refine(c2,ev.throughput[0],(1.0,.97))
            if s.best<v0: s.refine(s.cut,s.speed)
            if deadline and time.process_time()-t0>deadline: break
    info.update(after=s.best,t=time.process_time()-t0,evals=s.evals,priced=s.polish.priced)
    return s,info
