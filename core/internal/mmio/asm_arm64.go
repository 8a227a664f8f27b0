package mmio

const lineLoads = true
