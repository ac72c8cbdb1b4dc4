// A transactional producer with franz-go that is driven by lines of words, one command each, and
// answers each with one line: "ok", or the error.
//
//	franz_producer SERVERS TRANSACTIONAL_ID TIMEOUT_MS [GROUP TOPIC]
//
// franz-go commits offsets in transactions only for what the session of a group consumed. With a
// group, "offsets" therefore consumes the topic until the offset is the next one to commit.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 60 * time.Second

type producer struct {
	client   *kgo.Client
	session  *kgo.GroupTransactSession // nil without a group
	consumed int64
}

func open(args []string) (*producer, error) {
	timeout, err := strconv.Atoi(args[2])
	if err != nil {
		return nil, err
	}
	settings := []kgo.Opt{
		kgo.SeedBrokers(args[0]),
		kgo.TransactionalID(args[1]),
		kgo.TransactionTimeout(time.Duration(timeout) * time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
	if len(args) == 3 {
		client, err := kgo.NewClient(settings...)
		return &producer{client: client}, err
	}
	session, err := kgo.NewGroupTransactSession(append(settings,
		kgo.ConsumerGroup(args[3]), kgo.ConsumeTopics(args[4]),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return nil, err
	}
	return &producer{client: session.Client(), session: session}, nil
}

func (p *producer) carryOut(ctx context.Context, words []string) error {
	switch words[0] {
	case "init":
		_, _, err := p.client.ProducerID(ctx) // InitProducerId, which fences others
		return err
	case "begin":
		if p.session != nil {
			return p.session.Begin()
		}
		return p.client.BeginTransaction()
	case "send":
		partition, err := strconv.Atoi(words[2])
		if err != nil {
			return err
		}
		record := &kgo.Record{Topic: words[1], Partition: int32(partition), Value: []byte(words[3])}
		return p.client.ProduceSync(ctx, record).FirstErr()
	case "offsets":
		return p.consume(ctx, words[4])
	case "commit":
		return p.end(ctx, kgo.TryCommit)
	case "abort":
		return p.end(ctx, kgo.TryAbort)
	}
	return fmt.Errorf("no such command: %s", words[0])
}

func (p *producer) consume(ctx context.Context, until string) error {
	if p.session == nil {
		return errors.New("franz-go commits offsets only in the session of a group")
	}
	offset, err := strconv.ParseInt(until, 10, 64)
	for err == nil && p.consumed < offset {
		fetches := p.session.PollRecords(ctx, int(offset-p.consumed))
		p.consumed += int64(fetches.NumRecords())
		err = fetches.Err()
	}
	return err
}

func (p *producer) end(ctx context.Context, how kgo.TransactionEndTry) error {
	if p.session == nil {
		return p.client.EndTransaction(ctx, how)
	}
	committed, err := p.session.End(ctx, how)
	if !committed {
		p.consumed = 0 // The session consumes again from the committed offsets, of which there are none.
	}
	if err == nil && committed != bool(how) {
		return errors.New("the session aborted the transaction")
	}
	return err
}

// answer names Kafka's errors as Kafka does.
func answer(err error) string {
	var known *kerr.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &known):
		return known.Message
	}
	return strings.ReplaceAll(err.Error(), "\n", " ")
}

func main() {
	made, err := open(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		fmt.Println(answer(made.carryOut(ctx, strings.Fields(lines.Text()))))
		cancel()
	}
}
