/* SPDX-License-Identifier: MIT */
/*
 * sanity/probe.c - what is here: the library, its backend, and the GPU.
 */
#include "sanity.h"
#include "run.h"

/* NVIDIA's library lacks it. */
extern __typeof__(gdr_get_backend) gdr_get_backend __attribute__((weak));

const char *backend_name(int backend)
{
	return backend == BE_GDRDRV ? "gdrdrv" : backend == BE_DMABUF ? "dmabuf" : "rm";
}

/* NVIDIA's library has no gdr_get_backend, and two backends, one with an attribute. */
static enum backend find_backend(struct env *e)
{
	char name[16] = "";
	int v = 0, i;

	if (gdr_get_backend) {
		check_rc(gdr_get_backend(e->g, name, sizeof(name)), 0);
		for (i = BE_GDRDRV; i < BE_ALL; i <<= 1)
			if (!strcmp(name, backend_name(i)))
				return i;
		check(!"a backend that is known");
	}
	check_rc(gdr_get_attribute(e->g, GDR_ATTR_USING_DMA_BUF_MMAP, &v), 0);
	return v ? BE_DMABUF : BE_GDRDRV;
}

/* Ends the probe where there is no GPU to test. */
static void need_gpu(struct env *e)
{
	const char *err = cuda_load(&e->cu);
	int result;

	if (err)
		skip("NVIDIA's driver is needed: %s", err);
	result = e->cu.init(0);
	if (result == CU_NO_DEVICE)
		skip("NVIDIA's driver finds no GPU");
	check_cu(result);
	check_cu(e->cu.device_count(&verdict->probe.gpus));
	if (!verdict->probe.gpus)
		skip("CUDA sees no GPU");
	if (e->gpu >= verdict->probe.gpus)
		_exit(CASE_USAGE);
}

void probe(struct env *e)
{
	int dev;

	need_gpu(e);
	start(e);
	check_cu(e->cu.device_get(&dev, e->gpu));
	check_cu(e->cu.device_name(verdict->probe.gpu_name,
				   sizeof(verdict->probe.gpu_name), dev));
	check_cu(e->cu.driver_version(&verdict->probe.cuda));
	gdr_runtime_get_version(&verdict->probe.lib[0], &verdict->probe.lib[1]);
	check_rc(gdr_driver_get_version(e->g, &verdict->probe.driver[0],
					&verdict->probe.driver[1]), 0);
	check_rc(gdr_get_attribute(e->g, GDR_ATTR_USE_PERSISTENT_MAPPING,
				   &verdict->probe.persistent), 0);
	check_rc(gdr_get_attribute(e->g, GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE,
				   &verdict->probe.force_pcie), 0);
	verdict->probe.backend = find_backend(e);
	check_rc(gdr_close(e->g), 0);
}
