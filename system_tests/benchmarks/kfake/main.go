// Kfake runs franz-go's fake broker on a free port until its standard input ends, and prints where
// it listens as one line. It is a peer of the benchmarks, with kfake's own defaults.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.AllowAutoTopicCreation())
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	fmt.Println(cluster.ListenAddrs()[0])
	bufio.NewReader(os.Stdin).ReadString('\n')
}
