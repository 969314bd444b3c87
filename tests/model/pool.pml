// SPDX-License-Identifier: Apache-2.0
// Publishing, attaching, taking over and dying: the rules of docs/protocol.md in small.
//
// One extent X holds table 1, is retired, freed, written anew and published as table 2: states 1 to 4 of the directory.
// Two slots hold a header (epoch, generation) and a payload (generation, state); a slot is whole when both name the same
// publication, which is what its checksum says. A step is one group of stores between two fences; a torn payload is
// one that names no publication. A's processes publish and may die at any step, and a next one clears up; B claims the
// pool, waits for proof that nobody writes on A, and goes on. R reads, through a cache that may fetch X at any time.

#define TORN 255
#define OLD(e1, g1, e2, g2) ((e1) < (e2) || ((e1) == (e2) && (g1) < (g2)))
#define WHOLE(i) (head_epoch[i] == pay_epoch[i] && head_gen[i] == pay_gen[i])
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifdef SAME_ORDER
#define LAST_SLOT 0
#else
#define LAST_SLOT 1 // the slot that alone is current is written last
#endif
#ifndef LIVES
#define LIVES 2 // of A's writer
#endif
#define DEATHS 1

byte head_epoch[2] = 1, head_gen[2] = 1, pay_epoch[2] = 1, pay_gen[2] = 1, state[2] = 1;
byte claim = 0;         // epoch that B wants
byte X = 1;             // what the extent holds
byte cached = 0;        // what R's host holds of it, 0: nothing
byte pinned = 255;      // the generation that R may touch; 0: any, 255: none
bool writing = false;   // a writer lives on A
bool settled = false;   // B owns the pool
byte late = 0;          // steps of A's writer behind B's claim
byte deaths = 0;

// Before every step of a publication the writer of epoch `e` looks whether it still is the owner.
inline check(e, stopped) {
#ifdef NO_CHECK
    stopped = false
#else
    stopped = (claim > e)
#endif
}

inline step_taken(e) {
    if
    :: e < claim -> late++; assert(late <= 1) // P1: a deposed writer takes one step at most
    :: else
    fi;
    assert(!(settled && e < claim)) // and none once the claim is proven
}

// Publish (e, g, s) to both slots, the one that alone is current last. `died` ends it at any step.
inline publish(e, g, s, stopped, died) {
    d_step {
        first = 0; turn = 0;
        if
        :: WHOLE(0) && (!WHOLE(1) || OLD(head_epoch[1], head_gen[1], head_epoch[0], head_gen[0])) -> first = LAST_SLOT
        :: else
        fi
    }
    do
    :: turn == 2 || stopped || died -> break
    :: else ->
        d_step { slot = (first + turn) % 2; check(e, stopped) };
        if
        :: stopped
        :: !stopped && deaths < DEATHS -> deaths++; died = true
        :: !stopped ->
            d_step { step_taken(e); pay_epoch[slot] = TORN; pay_gen[slot] = TORN }
            if
            :: deaths < DEATHS -> deaths++; died = true
            :: true ->
                d_step { pay_epoch[slot] = e; pay_gen[slot] = g; state[slot] = s }
                check(e, stopped);
                if
                :: stopped
                :: !stopped && deaths < DEATHS -> deaths++; died = true
                :: !stopped -> d_step { step_taken(e); head_epoch[slot] = e; head_gen[slot] = g }
                fi
            fi
        fi;
        turn++
    od
}

// Find the current directory, as a writer whom nobody disturbs does.
inline find(g, s, bad) {
    d_step {
        bad = !WHOLE(0) || !WHOLE(1);
        if
        :: WHOLE(0) && (!WHOLE(1) || OLD(head_epoch[1], head_gen[1], head_epoch[0], head_gen[0])) ->
            g = head_gen[0]; s = state[0]
        :: else ->
            assert(WHOLE(1)); // P4: whatever died, one slot is whole
            g = head_gen[1]; s = state[1]
        fi
    }
}

// Be the owner of epoch `e`: clear up, then go from state to state, until table 2 is published.
inline reign(e, stopped, died) {
    find(gen, now, bad);
    // A bad slot may have held a generation that R saw: its number is not used again.
    if
    :: bad -> gen = gen + 2
    :: else -> gen = gen + 1
    fi;
    publish(e, gen, now, stopped, died);
    do
    :: stopped || died || now == 4 -> break
    :: !stopped && !died && now == 1 -> gen++; publish(e, gen, 2, stopped, died); if :: !stopped && !died -> now = 2; retired = gen :: else fi
    :: !stopped && !died && now == 2 ->
        // P5: asked behind the publication that retired the table. A writer that came later knows no better
        // generation than its own first one.
        if
        :: retired == 0 -> retired = gen
        :: else
        fi;
        if
        :: pinned >= retired -> gen++; publish(e, gen, 3, stopped, died); if :: !stopped && !died -> now = 3 :: else fi
        :: pinned < retired -> break // try again at the next write
        fi
    :: !stopped && !died && now == 3 ->
        check(e, stopped);
        if
        :: stopped
        :: !stopped -> X = TORN; X = 2; gen++; publish(e, gen, 4, stopped, died); if :: !stopped && !died -> now = 4 :: else fi
        fi
    od
}

active proctype A() {
    byte gen, now, first, turn, slot, retired, lives;
    bool bad, stopped, died;
    do
    :: lives < LIVES ->
        // The lock, in front of any look at claims.
        d_step { lives++; retired = 0; stopped = false; died = false; writing = true }
        if
        :: claim == 0 -> reign(1, stopped, died)
        :: else
        fi;
        skip;
        d_step { writing = false; gen = 0; now = 0; first = 0; turn = 0; slot = 0; bad = false }
    :: true -> break
    od
}

#ifdef TAKE_OVER
active proctype B() {
    byte gen, now, first, turn, slot, retired;
    bool bad, stopped, died;
    if
    :: true -> skip // never takes it over
    :: true ->
        claim = 2;
#ifndef NO_PROOF
        !writing; // A's answer: no writer lives there
#endif
        settled = true;
        reign(2, stopped, died)
    fi
}

#endif

active proctype Cache() {
    // Once, at any time. That it drops a line at any time is no more than that it never held it.
    if
    :: true -> cached = X
    :: true
    fi
}

active proctype R() {
    byte round, i, e, g, best_e, best_g, best_s, seen_e, seen_g, reads, e0, g0;
    bool found, bad;
    do
    :: round == ROUNDS -> break
    :: else ->
#ifdef NO_PIN
        round++;
#else
        d_step { round++; pinned = 0 } // all generations, while the directory is read
#endif
        do
        :: i == 2 -> break
        :: else ->
            // Each line is invalidated before it is loaded, so what is read was in the memory in between.
            d_step {
                e = head_epoch[i]; g = head_gen[i];
                if
                :: i == 0 -> e0 = e; g0 = g
                :: else
                fi
            };
            d_step {
                if
                :: pay_epoch[i] != e || pay_gen[i] != g -> bad = true
                :: else ->
                    if
                    :: OLD(best_e, best_g, e, g) -> found = true; best_e = e; best_g = g; best_s = state[i]
                    :: else
                    fi
                fi;
                e = 0; g = 0;
                i++
            }
        od;
        // Slot 0 may have been read long ago: beside a bad slot 1 it counts if it is still the same.
        if
#ifndef NO_SECOND_LOOK
        :: found && bad ->
            d_step { found = (head_epoch[0] != e0 || head_gen[0] != g0 -> false : true) }
#endif
        :: else
        fi;
        if
        :: !found // both slots were caught in the middle: read again
        :: found ->
            assert(!OLD(best_e, best_g, seen_e, seen_g)); // a reader never sees an older directory
            d_step { seen_e = best_e; seen_g = best_g; pinned = best_g }
            if
            :: best_s == 1 || best_s == 4 ->
#ifndef NO_INVALIDATION
                cached = 0; // P3: every line of the table, behind the directory that names it
#endif
                do
                :: reads == 2 -> break
                :: else ->
                    d_step {
                        if
                        :: cached == 0 -> cached = X
                        :: else
                        fi;
                        assert(best_s == 1 && cached == 1 || best_s == 4 && cached == 2);
                        reads++
                    }
                od
            :: else
            fi
        fi;
        skip;
        d_step {
            pinned = 255;
            found = false; bad = false; best_e = 0; best_g = 0; best_s = 0; i = 0; e0 = 0; g0 = 0; reads = 0
        }
    od
}
