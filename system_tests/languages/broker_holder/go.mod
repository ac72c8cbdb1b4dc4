module minibroker/languages/holder

go 1.26.0

require example.org/minibroker v0.0.0

replace example.org/minibroker => ../../../minibroker/languages/go
