"""Tools beside the core: `explain`, `plan`, the command line, the cache's commands and the doctor."""
