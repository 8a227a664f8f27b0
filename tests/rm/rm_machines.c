// SPDX-License-Identifier: MIT
/*
 * rm_machines.c - what the rm backend answers on each kind of machine.
 *
 * Each row is a machine of the simulated driver (tests/doubles, rm_sim). The program runs
 * itself on it, once for each device that CUDA shows. It says how far a consumer comes,
 * and the library's log says why not further.
 *
 *	rm_machines		all rows; $RM_SIM is the simulated driver
 *	rm_machines --on DEVICE	one device of this machine
 */
#define _GNU_SOURCE
#include "cuda_dl.h"
#include "tap.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gdrapi.h"
#include "gdrapi_ext.h"

#define MIB (1ul << 20)
#define SIZE (5 * MIB)

struct row {
	const char *what;
	const char *env;	/* NAME=value, by spaces */
	const char *want[2];	/* of device 0 and 1; NULL: CUDA shows no such device; *: the end */
	const char *log;	/* must be in what the library and the driver print; NULL: any */
	const char *not_log;	/* must not */
};

/*
 * An outcome has the answer of gdr_open before cuInit and after it, and the first call that
 * failed with its errno, or the memory type of a mapping whose bytes were right. Then come the
 * driver's version and the attribute of forced PCIe, where they are not what most machines answer.
 */
#define NOT_OPEN "early NULL, late NULL"
#define WORKS "early open, late open, "
#define KERNEL_LOG "NVRM: "
#define MPS "another process"
#define NAME_IT "set GDRCOPY_BACKEND=rm"
#define NAMED "GDRCOPY_BACKEND=rm "
/* aws-ofi-nccl's GIN asks the version alone, others the attribute. */
#define GATE ", version 2.4, cannot force PCIe"
#define FAILED "ERR: "
/* The driver's version is not known: nothing is heard, and CUDA is asked. */
#define ASKED "NVRM_SIM_FAIL=VERSION=22 "

static const struct row rows[] = {
	{ "a PCIe GPU", "NVRM_SIM_DEVICES=1", { WORKS "wc" }, NULL, FAILED },
	{ "CUDA 11.6", "NVRM_SIM_DEVICES=1 CUDA_SIM_DRIVER_VERSION=11060", { WORKS "wc" }, NULL, FAILED },
	{ "the same, asked", ASKED "NVRM_SIM_DEVICES=1 CUDA_SIM_DRIVER_VERSION=11060", { WORKS "wc" }, NULL, FAILED },
	{ "CUDA 11.6, memory of which it does not say the objects", ASKED "NVRM_SIM_DEVICES=1 CUDA_SIM_DRIVER_VERSION=11060 VMM=1",
	  { WORKS "gdr_pin_buffer EOPNOTSUPP" }, "a driver of 535 or later", NULL },
	{ "the same, heard", "NVRM_SIM_DEVICES=1 CUDA_SIM_DRIVER_VERSION=11060 VMM=1", { WORKS "wc" }, NULL, FAILED },
	{ "Grace", "NVRM_SIM_MACHINE=grace", { NOT_OPEN, NOT_OPEN }, NAME_IT, NULL },
	{ "Grace, CUDA 13.3", "NVRM_SIM_MACHINE=grace CUDA_SIM_DRIVER_VERSION=13030", { "early open, late NULL" }, NAME_IT, NULL },
	{ "Grace, CUDA 13.3, seen at the pin", "NVRM_SIM_MACHINE=grace CUDA_SIM_DRIVER_VERSION=13030 ONE_OPEN=1",
	  { "early open, gdr_pin_buffer EOPNOTSUPP" }, NAME_IT, NULL },
	{ "Grace, named", NAMED "NVRM_SIM_MACHINE=grace", { WORKS "caching" GATE, WORKS "caching" GATE }, NULL, FAILED },
	{ "Grace, driver 535", NAMED "NVRM_SIM_MACHINE=grace NVRM_SIM_DRIVER=535", { WORKS "caching" GATE }, NULL, FAILED },
	{ "Grace, memory in driver mode", NAMED "NVRM_SIM_MACHINE=cdmm", { WORKS "caching" GATE }, NULL, FAILED },
	{ "Grace, at the end of the GPU's memory", NAMED "NVRM_SIM_MACHINE=grace NVRM_SIM_SCATTERED=1",
	  { WORKS "caching" GATE }, "is mapped in 3 parts", FAILED },
	{ "the same, from the second page of the memory on", NAMED "OFFSET=1 NVRM_SIM_MACHINE=grace NVRM_SIM_SCATTERED=1",
	  { WORKS "caching" GATE }, "is mapped in 3 parts", FAILED },
	{ "the same, driver 595", NAMED "NVRM_SIM_MACHINE=cdmm NVRM_SIM_SCATTERED=1 NVRM_SIM_DRIVER=595",
	  { WORKS "caching" GATE }, "is mapped in 3 parts", FAILED },
	/* The library maps four pages of its own before. */
	{ "the same, and a mapping that fails in the middle",
	  NAMED "NVRM_SIM_MACHINE=grace NVRM_SIM_SCATTERED=1 NVRM_SIM_FAIL=MMAP=12@7", { WORKS "gdr_map ENOMEM" }, FAILED, NULL },
	{ "BAR1 in pieces, driver 550", "FRAGMENT=1 NVRM_SIM_BAR1_MIB=6 NVRM_SIM_DRIVER=550", { WORKS "wc" },
	  "is mapped in 3 parts", FAILED },
	{ "BAR1 in pieces, driver 580", "FRAGMENT=1 NVRM_SIM_BAR1_MIB=6", { WORKS "wc" }, NULL, "parts" },
	{ "BAR1 full, driver 550", "FRAGMENT=1 NVRM_SIM_BAR1_MIB=5 NVRM_SIM_DRIVER=550", { WORKS "gdr_map ENOMEM" },
	  "unpin buffers", NULL },
	{ "GB10", "NVRM_SIM_MACHINE=gb10", { NOT_OPEN }, NAME_IT, NULL },
	{ "GB10, CUDA 13.3", "NVRM_SIM_MACHINE=gb10 CUDA_SIM_DRIVER_VERSION=13030", { "early open, late NULL" }, NAME_IT, NULL },
	{ "GB10, named", NAMED "NVRM_SIM_MACHINE=gb10", { WORKS "wc" GATE, WORKS "wc" GATE }, NULL, FAILED },
	{ "GB10, cached", NAMED "NVRM_SIM_MACHINE=gb10 NVRM_SIM_PHYS_ATTR=5", { WORKS "caching" GATE }, NULL, FAILED },
	{ "GB10, the cache not told", NAMED "NVRM_SIM_MACHINE=gb10 NVRM_SIM_PHYS_ATTR=0", { WORKS "wc" GATE }, NULL, FAILED },
	{ "GB10, driver 570", NAMED "NVRM_SIM_MACHINE=gb10 NVRM_SIM_DRIVER=570", { WORKS "wc" GATE }, NULL, FAILED },
	{ "MIG, CUDA 13.3", "NVRM_SIM_MACHINE=mig CUDA_SIM_DRIVER_VERSION=13030", { "early open, late NULL" }, "MIG", MPS },
	{ "MIG, CUDA 13.3, seen at the pin", "NVRM_SIM_MACHINE=mig CUDA_SIM_DRIVER_VERSION=13030 ONE_OPEN=1",
	  { "early open, gdr_pin_buffer EOPNOTSUPP" }, "MIG", MPS },
	{ "Arm's Device memory, if it were told", "NVRM_SIM_ANSWER=0x810000", { WORKS "device" }, NULL, FAILED },
	{ "MIG", "NVRM_SIM_MACHINE=mig", { NOT_OPEN, NOT_OPEN }, "MIG", MPS },
	{ "MIG without an instance", "NVRM_SIM_MACHINE=mig-empty", { NULL }, NULL, NULL },
	{ "MIG on one GPU of two", "NVRM_SIM_MACHINE=mig,pcie NVRM_SIM_DEVICES=2",
	  { WORKS "gdr_pin_buffer EOPNOTSUPP", WORKS "wc" }, "MIG", MPS },
	{ "MIG on the only GPU that CUDA shows", "NVRM_SIM_MACHINE=mig,pcie CUDA_SIM_DEVICES=1",
	  { "early open, late NULL" }, "MIG", MPS },
	{ "MIG without an instance on one GPU of two", "NVRM_SIM_MACHINE=mig-empty,pcie NVRM_SIM_DEVICES=2",
	  { WORKS "wc" }, NULL, FAILED },
	{ "MIG, driver 535", "NVRM_SIM_MACHINE=mig NVRM_SIM_DRIVER=535", { WORKS "gdr_pin_buffer EOPNOTSUPP" },
	  "MIG", MPS },
	{ "confidential computing", "NVRM_SIM_MACHINE=cc", { "early open, late NULL" }, "confidential computing", NULL },
	{ "confidential computing, driver 535", "NVRM_SIM_MACHINE=cc NVRM_SIM_DRIVER=535", { "early open, late NULL" },
	  "confidential computing", NULL },
	{ "protected PCIe", "NVRM_SIM_MACHINE=ppcie", { "early open, late NULL" }, "confidential computing", NULL },
	{ "confidential computing that is seen at the pin", "NVRM_SIM_MACHINE=cc ONE_OPEN=1",
	  { "early open, gdr_pin_buffer EOPNOTSUPP" }, "confidential computing", NULL },
	{ "vGPU", "NVRM_SIM_MACHINE=vgpu", { WORKS "wc", WORKS "wc" }, NULL, FAILED },
	{ "vGPU, a driver of an unknown version", ASKED "NVRM_SIM_MACHINE=vgpu", { WORKS "gdr_pin_buffer EOPNOTSUPP" }, "vGPU", NULL },
	{ "the display of a Tegra", "NVRM_SIM_MACHINE=tegra", { NULL }, NULL, NULL },
	{ "the display of a Tegra beside a GPU", NAMED "NVRM_SIM_MACHINE=tegra,gb10", { WORKS "wc" GATE }, NULL, FAILED },
	{ "a lost GPU, at the map", "NVRM_SIM_FAIL=MAP_MEMORY=0x0f", { "* ENODEV" }, "lost", NULL },
	{ "a GPU lost between two requests", "NVRM_SIM_FAIL=MMAP_STATUS=0xf", { "* ENODEV" }, "lost", NULL },
	{ "the same, driver 595", "NVRM_SIM_FAIL=MMAP_STATUS=0xf NVRM_SIM_DRIVER=595", { "* ENODEV" }, NULL, NULL },
	{ "a driver that does not know a request", "NVRM_SIM_FAIL=CARD_INFO=22", { NOT_OPEN }, "does not know the request", NULL },
	{ "memory of another process", "NVRM_SIM_FAIL=DUP_OBJECT=0x1b", { WORKS "gdr_pin_buffer EOPNOTSUPP" }, MPS, NULL },
	{ "a client of another process", "NVRM_SIM_FAIL=MAP_MEMORY=0x23", { WORKS "gdr_map EACCES" }, "gdr_open", NULL },
	{ "a reset", "NVRM_SIM_FAIL=DUP_OBJECT=0x10", { WORKS "gdr_pin_buffer EAGAIN" }, "reset", NULL },
	{ "an answer that is not known", NAMED "NVRM_SIM_MACHINE=grace CUDA_SIM_COHERENT=0 NVRM_SIM_ANSWER=0x2800000",
	  { WORKS "gdr_map EOPNOTSUPP" }, "mapping 0 and the cache type 5", NULL },
};

static const char *const type_names[GDR_MAPPING_TYPE_MAX] = { "no type", "wc", "caching", "device" };

/* Writes by the mapping and reads by CUDA, and the other way, at the start, middle, end. */
static bool right_bytes(const struct cuda_dl *cu, gdr_mh_t mh, char *va, cu_ptr p)
{
	static const size_t at[] = { 0, 1, 2 * MIB - 64, 2 * MIB + 5, SIZE - 200 };
	unsigned char out[129], in[129];
	bool same = true;

	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		for (size_t j = 0; j < sizeof(out); j++)
			out[j] = (unsigned char)(7 * i + 13 * j + 1);
		same = same && !gdr_copy_to_mapping(mh, va + at[i], out, sizeof(out)) &&
		       !cu->from_gpu(in, p + at[i], sizeof(in)) && !memcmp(in, out, sizeof(in));
		for (size_t j = 0; j < sizeof(out); j++)
			out[j] ^= 0x5a;
		same = same && !cu->to_gpu(p + at[i], out, sizeof(out)) && !cu->ctx_sync() &&
		       !gdr_copy_from_mapping(mh, in, va + at[i], sizeof(in)) && !memcmp(in, out, sizeof(in));
	}
	return same;
}

/* What programs ask before they count on forced PCIe. */
static void gates(gdr_t g)
{
	int major = 0, minor = 0, forces = -1;

	gdr_driver_get_version(g, &major, &minor);
	gdr_get_attribute(g, GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE, &forces);
	if (major != 2 || minor != 6)
		printf(", version %d.%d", major, minor);
	if (forces != 1)
		printf(", cannot force PCIe");
}

static void use(const struct cuda_dl *cu, gdr_t g, cu_ptr p)
{
	gdr_info_t info;
	gdr_mh_t mh;
	void *va;
	int rc = gdr_pin_buffer(g, p, SIZE, 0, 0, &mh);

	if (rc) {
		printf("gdr_pin_buffer %s", strerrorname_np(rc));
		return;
	}
	rc = gdr_map(g, mh, &va, SIZE);
	if (rc) {
		printf("gdr_map %s", strerrorname_np(rc));
	} else {
		rc = gdr_get_info(g, mh, &info);
		printf("%s", rc ? "gdr_get_info" : type_names[info.mapping_type]);
		if (!right_bytes(cu, mh, va, p))
			printf(", wrong bytes");
		gates(g);
		if (gdr_unmap(g, mh, va, SIZE))
			printf(", gdr_unmap");
	}
	if (gdr_unpin_buffer(g, mh))
		printf(", gdr_unpin_buffer");
}

/* Takes 64 KiB of BAR1 behind a gap of 2 MiB, until gdr_close. Returns whether that went well. */
static bool fragment(gdr_t g, cu_ptr p)
{
	gdr_mh_t first, second;
	void *va, *va2;

	return !gdr_pin_buffer(g, p, 2 * MIB, 0, 0, &first) && !gdr_pin_buffer(g, p, GPU_PAGE_SIZE, 0, 0, &second) &&
	       !gdr_map(g, first, &va, 2 * MIB) && !gdr_map(g, second, &va2, GPU_PAGE_SIZE) &&
	       !gdr_unmap(g, first, va, 2 * MIB) && !gdr_unpin_buffer(g, first);
}

/* Memory of cuMemCreate; it ends with g. */
static cu_ptr vmm(gdr_t g, int device)
{
	unsigned long p = 0;
	gdr_mem_t mem;

	if (gdr_mem_alloc(g, device, SIZE, 0, &mem) || gdr_mem_get_device_ptr(g, mem, &p, NULL))
		printf("no memory, ");
	return p;
}

/* Prints the outcome of one device. Exits 77 where CUDA shows no such device. */
static int on(int device)
{
	gdr_t g = gdr_open();
	unsigned long (*live)(void);
	struct cuda_dl cu;
	cu_ctx ctx;
	cu_ptr p;
	int count = 0;
	size_t offset;

	printf("early %s, ", g ? "open" : "NULL");
	if (cuda_load(&cu) || (cu.init(0) && device) || cu.device_count(&count) || device >= count)
		return 77;
	if (cu.primary_retain(&ctx, device) || cu.ctx_set(ctx) || cu.mem_alloc(&p, SIZE + GPU_PAGE_SIZE))
		return 1;
	offset = getenv("OFFSET") ? GPU_PAGE_SIZE : 0;
	live = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuda_sim_live");
	if (!getenv("ONE_OPEN")) {
		if (g && gdr_close(g))
			printf("gdr_close, ");
		g = gdr_open();
		printf("late %s", g ? "open, " : "NULL");
	}
	if (g && getenv("FRAGMENT") && !fragment(g, p))
		printf("no fragment, ");
	if (g)
		use(&cu, g, getenv("VMM") ? vmm(g, device) : p + offset);
	cu.mem_free(p);
	if (g && gdr_close(g))
		printf(", gdr_close");
	/* The library keeps a buffer of its own, if it tried the driver on one. */
	if (live && live() > 1)
		printf(", %lu things are left", live());
	printf("\n");
	return 0;
}

/* The outcome of a device of the row's machine, and all that was printed on stderr. */
static int outcome(const struct row *r, int device, char *out, char *log, size_t size)
{
	char command[8192], self[4096] = "";
	FILE *err = tmpfile(), *program;
	int status;

	if (!err || readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		return -1;
	snprintf(command, sizeof(command), "exec env %s GDRCOPY_ENABLE_LOGGING=1 GDRCOPY_LOG_LEVEL=1 \"$RM_SIM\" '%s' --on %d "
		 "2>/proc/self/fd/%d", r->env, self, device, fileno(err));
	fflush(stdout);
	program = popen(command, "r");
	if (!program)
		return -1;
	out[fread(out, 1, size - 1, program)] = '\0';
	out[strcspn(out, "\n")] = '\0';
	status = pclose(program);
	rewind(err);
	log[fread(log, 1, size - 1, err)] = '\0';
	fclose(err);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool is_wanted(const char *out, const char *want)
{
	size_t n = strlen(out), end = strlen(want) - 1;

	return *want == '*' ? n >= end && !strcmp(out + n - end, want + 1) : !strcmp(out, want);
}

static void check(struct tap *t, const struct row *r)
{
	static char out[1 << 16], log[1 << 16];

	for (int device = 0; device < 2; device++) {
		int rc = outcome(r, device, out, log, sizeof(out));
		const char *want = r->want[device];
		bool bad;

		if (!want) {
			if (device == 0)
				tap_ok(t, rc == 77 && strstr(out, "early NULL") != NULL, "%s: no device, and gdr_open is NULL", r->what);
			continue;
		}
		bad = !tap_ok(t, rc == 0 && is_wanted(out, want), "%s, device %d: %s", r->what, device, want);
		if (bad)
			printf("# it ended with %d: %s\n", rc, out);
		/* Of several devices only those that fail have something to say. */
		if (r->log && (device == 0 || strstr(want, "EOPNOTSUPP")))
			bad |= !tap_ok(t, strstr(log, r->log) != NULL, "... and it is said: %s", r->log);
		if (r->not_log)
			bad |= !tap_ok(t, !strstr(log, r->not_log), "... and not: %s", r->not_log);
		bad |= !tap_ok(t, !strstr(log, KERNEL_LOG), "... and the kernel logs nothing");
		for (char *line = bad ? strtok(log, "\n") : NULL; line; line = strtok(NULL, "\n"))
			printf("# %s\n", line);
	}
}

int main(int argc, char **argv)
{
	struct tap t = { 0 };

	if (argc == 3 && !strcmp(argv[1], "--on"))
		return on(atoi(argv[2]));
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!getenv("RM_SIM")) {
		printf("Bail out! RM_SIM names no simulated driver\n");
		return 1;
	}
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		check(&t, &rows[i]);
	return tap_done(&t);
}
