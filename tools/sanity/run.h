/* SPDX-License-Identifier: MIT */
/*
 * sanity/run.h - between the runner of gdrcopy_sanity and its helpers.
 */
#ifndef SANITY_RUN_H
#define SANITY_RUN_H

#include <stdbool.h>

/*
 * After this long a case is stuck, and SIGALRM ends it. The longest takes 5 s in an emulated
 * machine of a quiet host, and a host may be 50 times as busy.
 */
enum { CASE_SECONDS = 300 };

/* The exit status of a case, and of the program. */
enum { CASE_PASSED = 0, CASE_FAILED = 1, CASE_USAGE = 2, CASE_SKIPPED = 77 };

struct env;

/* Memory that the runner shares with the case. */
struct verdict {
	unsigned long checks;	/* made so far; a case with none has failed */
	char why[200];		/* of a skip */
	struct {
		int backend, persistent, force_pcie, gpus;
		int lib[2], driver[2], cuda;
		char gpu_name[96];
	} probe;
};

extern struct verdict *verdict;
extern bool verbose;

/* A case for verdict->probe. It ends as CASE_USAGE where there is no GPU of that number. */
void probe(struct env *e);

const char *backend_name(int backend);

#endif
