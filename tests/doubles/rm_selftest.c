// SPDX-License-Identifier: MIT
/* The simulated driver of rm_sim passes the list of requests that the others pass. */
#include "rm_selftest.h"

#include <stdio.h>

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	test_rm_both();
	return tap_end();
}
