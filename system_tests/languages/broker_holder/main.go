// Starts a broker, prints its process id, and waits.
package main

import (
	"context"
	"fmt"
	"time"

	"example.org/minibroker"
)

func main() {
	kafka, err := minibroker.Start(context.Background())
	if err != nil {
		panic(err)
	}
	fmt.Println(kafka.PID)
	for {
		time.Sleep(time.Minute)
	}
}
