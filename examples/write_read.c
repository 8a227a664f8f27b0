// SPDX-License-Identifier: MIT
/*
 * write_read - the CPU writes GPU memory and CUDA reads it; then the other way.
 */
#include "example.h"

int main(void)
{
	char sent[] = "from the CPU", got[sizeof(sent)] = "", answer[] = "from CUDA";
	struct example_memory m;
	gdr_t g;

	example_context();
	g = example_open();
	example_map(g, &m, GPU_PAGE_SIZE);

	gdr(gdr_copy_to_mapping(m.mh, m.cpu, sent, sizeof(sent)), "gdr_copy_to_mapping");
	cu(cuMemcpyDtoH(got, m.dev, sizeof(got)), "cuMemcpyDtoH");
	same(got, sent, sizeof(sent), "CUDA");
	printf("CUDA reads: %s\n", got);

	cu(cuMemcpyHtoD(m.dev, answer, sizeof(answer)), "cuMemcpyHtoD");
	gdr(gdr_copy_from_mapping(m.mh, got, m.cpu, sizeof(answer)), "gdr_copy_from_mapping");
	same(got, answer, sizeof(answer), "the CPU");
	printf("the CPU reads: %s\n", got);

	example_unmap(g, &m);
	gdr(gdr_close(g), "gdr_close");
	return 0;
}
