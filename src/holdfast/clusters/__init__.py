"""Clusters that run agents: engines that place them, and files for cluster managers."""
