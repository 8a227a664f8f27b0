/* SPDX-License-Identifier: MIT */
/*
 * bench/team.h - threads that share each copy, every one a contiguous part.
 */
#ifndef BENCH_TEAM_H
#define BENCH_TEAM_H

#include "loops.h"

struct bench_team;

/*
 * Starts n - 1 threads; the caller of the functions below is the n-th. They
 * wait for work without sleeping, but let others run. Ends the program if a
 * thread cannot be started.
 */
struct bench_team *bench_team_start(int n);
void bench_team_stop(struct bench_team *team);

/* Library copies by a team, which is the op's user. */
bench_run bench_team_write, bench_team_read;

#endif
