module example/ledger

go 1.19
