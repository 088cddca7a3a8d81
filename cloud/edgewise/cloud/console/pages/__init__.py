"""One file per page; each registers its routes when it is imported (see `console.app`)."""
