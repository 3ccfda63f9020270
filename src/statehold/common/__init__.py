"""Small parts that every other folder may use: names, partitioning, exit codes, access rights."""
