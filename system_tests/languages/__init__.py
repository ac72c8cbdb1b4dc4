"""The packages for Node.js, Java and Go, each with its own toolchain."""
