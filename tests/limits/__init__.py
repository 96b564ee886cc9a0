"""Full disks, quotas, clocks, and limits of the system."""
