"""The flights on a cluster; docs/clusters.md explains each step."""
