// A transactional producer with sarama that is driven by lines of words, one command each, and
// answers each with one line: "ok", or the error.
//
//	sarama_producer SERVERS TRANSACTIONAL_ID TIMEOUT_MS
//
// sarama keeps offsets until the commit: "offsets" sends nothing, and neither does an abort.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

const retries = 100

type driver struct {
	servers  []string
	config   *sarama.Config
	producer sarama.SyncProducer
}

func configOf(transactionalID string, timeout time.Duration) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Net.MaxOpenRequests = 1
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Transaction.ID = transactionalID
	config.Producer.Transaction.Timeout = timeout
	config.Producer.Transaction.Retry.Max = retries
	return config
}

func (d *driver) carryOut(words []string) error {
	switch words[0] {
	case "init":
		producer, err := sarama.NewSyncProducer(d.servers, d.config)
		d.producer = producer
		return err
	case "begin":
		return d.producer.BeginTxn()
	case "send":
		partition, err := strconv.Atoi(words[2])
		if err != nil {
			return err
		}
		_, _, err = d.producer.SendMessage(&sarama.ProducerMessage{
			Topic: words[1], Partition: int32(partition), Value: sarama.StringEncoder(words[3])})
		return err
	case "offsets":
		return d.addOffset(words[1], words[2], words[3], words[4])
	case "commit":
		return d.producer.CommitTxn()
	case "abort":
		return d.producer.AbortTxn()
	}
	return fmt.Errorf("no such command: %s", words[0])
}

func (d *driver) addOffset(group, topic, partitionText, offsetText string) error {
	partition, err := strconv.Atoi(partitionText)
	if err != nil {
		return err
	}
	offset, err := strconv.ParseInt(offsetText, 10, 64)
	if err != nil {
		return err
	}
	return d.producer.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{
		topic: {{Partition: int32(partition), Offset: offset}},
	}, group)
}

// answer names Kafka's errors by their codes as well, since sarama has only sentences.
func answer(err error) string {
	if err == nil {
		return "ok"
	}
	text := strings.ReplaceAll(err.Error(), "\n", " ")
	var known sarama.KError
	if !errors.As(err, &known) {
		return text
	}
	switch known {
	case sarama.ErrInvalidProducerEpoch:
		return "INVALID_PRODUCER_EPOCH: " + text
	case sarama.ErrProducerFenced:
		return "PRODUCER_FENCED: " + text
	}
	return fmt.Sprintf("error %d: %s", int16(known), text)
}

func main() {
	timeout, err := strconv.Atoi(os.Args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	config := configOf(os.Args[2], time.Duration(timeout)*time.Millisecond)
	made := &driver{servers: strings.Split(os.Args[1], ","), config: config}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(answer(made.carryOut(strings.Fields(lines.Text()))))
	}
}
