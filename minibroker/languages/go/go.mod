module example.org/minibroker

go 1.21
