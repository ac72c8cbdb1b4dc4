// franz-go as an administrator and a client: one line of JSON is asked, one is answered.
//
// It owns how each thing is said to franz-go's clients; the tests own what is expected. An answer is
// {"is": ...} or, where the client was told of an error, {"error": "its name or text"}.
//
//	franz SERVERS                                   over PLAINTEXT
//	franz SERVERS AUTHORITY MECHANISM USER PASSWORD    over TLS, with a proof
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const patience = 20 * time.Second

type question struct {
	Op         string
	Entity     map[string]*string
	Quotas     map[string]*float64 // nil removes one
	Any        []string            // kinds of entities of which each is described
	Strict     bool
	User       string
	Mechanism  string
	Iterations int32
	Password   string
	Rule       rule
	Topic      string
	Value      string
}

type rule struct {
	Principal string `json:"principal"`
	Host      string `json:"host"`
	Resource  string `json:"resource"`
	Name      string `json:"name"`
	Pattern   string `json:"pattern"`
	Operation string `json:"operation"`
	Denies    bool   `json:"denies"`
}

var mechanisms = map[string]kadm.ScramMechanism{
	"SCRAM-SHA-256": kadm.ScramSha256,
	"SCRAM-SHA-512": kadm.ScramSha512,
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func options(args []string) []kgo.Opt {
	found := []kgo.Opt{kgo.SeedBrokers(args[0]), kgo.RecordDeliveryTimeout(patience),
		kgo.AllowAutoTopicCreation()}
	if len(args) == 1 {
		return found
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(must(os.ReadFile(args[1])))
	found = append(found, kgo.DialTLSConfig(&tls.Config{RootCAs: authorities}))
	user, password := args[3], args[4]
	switch args[2] {
	case "PLAIN":
		return append(found, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "SCRAM-SHA-256":
		return append(found, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
	default:
		return append(found, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	}
}

func setQuotas(ctx context.Context, admin *kadm.Client, asked question) any {
	var entry kadm.AlterClientQuotaEntry
	for kind, name := range asked.Entity {
		entry.Entity = append(entry.Entity, kadm.ClientQuotaEntityComponent{Type: kind, Name: name})
	}
	for key, value := range asked.Quotas {
		if value == nil {
			entry.Ops = append(entry.Ops, kadm.AlterClientQuotaOp{Key: key, Remove: true})
		} else {
			entry.Ops = append(entry.Ops, kadm.AlterClientQuotaOp{Key: key, Value: *value})
		}
	}
	for _, each := range must(admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{entry})) {
		check(each.Err)
	}
	return true
}

func quotas(ctx context.Context, admin *kadm.Client, asked question) any {
	var wanted []kadm.DescribeClientQuotaComponent
	for kind, name := range asked.Entity {
		match := kmsg.QuotasMatchTypeExact
		if name == nil {
			match = kmsg.QuotasMatchTypeDefault
		}
		wanted = append(wanted, kadm.DescribeClientQuotaComponent{Type: kind, MatchName: name, MatchType: match})
	}
	for _, kind := range asked.Any {
		wanted = append(wanted, kadm.DescribeClientQuotaComponent{Type: kind, MatchType: kmsg.QuotasMatchTypeAny})
	}
	found := []any{}
	for _, each := range must(admin.DescribeClientQuotas(ctx, asked.Strict, wanted)) {
		entity, values := map[string]*string{}, map[string]float64{}
		for _, part := range each.Entity {
			entity[part.Type] = part.Name
		}
		for _, value := range each.Values {
			values[value.Key] = value.Value
		}
		found = append(found, []any{entity, values})
	}
	return found
}

func setPassword(ctx context.Context, admin *kadm.Client, asked question) any {
	var gone []kadm.DeleteSCRAM
	var there []kadm.UpsertSCRAM
	kind := mechanisms[asked.Mechanism]
	if asked.Password == "" {
		gone = append(gone, kadm.DeleteSCRAM{User: asked.User, Mechanism: kind})
	} else {
		there = append(there, kadm.UpsertSCRAM{User: asked.User, Mechanism: kind,
			Iterations: asked.Iterations, Password: asked.Password})
	}
	check(must(admin.AlterUserSCRAMs(ctx, gone, there)).Error())
	return true
}

func passwords(ctx context.Context, admin *kadm.Client, asked question) any {
	found := map[string]int32{}
	for _, each := range must(admin.DescribeUserSCRAMs(ctx, asked.User)) {
		check(each.Err)
		for _, info := range each.CredInfos {
			found[info.Mechanism.String()] = info.Iterations
		}
	}
	return found
}

func builder(of rule) *kadm.ACLBuilder {
	made := kadm.NewACLs().ResourcePatternType(must(kmsg.ParseACLResourcePatternType(of.Pattern))).
		Operations(must(kmsg.ParseACLOperation(of.Operation)))
	switch of.Resource {
	case "TOPIC":
		made.Topics(of.Name)
	case "GROUP":
		made.Groups(of.Name)
	case "TRANSACTIONAL_ID":
		made.TransactionalIDs(of.Name)
	default:
		made.Clusters()
	}
	if of.Denies {
		return made.Deny(of.Principal).DenyHosts(of.Host)
	}
	return made.Allow(of.Principal).AllowHosts(of.Host)
}

func addRule(ctx context.Context, admin *kadm.Client, asked question) any {
	for _, each := range must(admin.CreateACLs(ctx, builder(asked.Rule))) {
		check(each.Err)
	}
	return true
}

func rules(ctx context.Context, admin *kadm.Client, _ question) any {
	everything := kadm.NewACLs().AnyResource().Allow().AllowHosts().Deny().DenyHosts().
		Operations().ResourcePatternType(kadm.ACLPatternAny)
	found, seen := []rule{}, map[rule]bool{}
	for _, filter := range must(admin.DescribeACLs(ctx, everything)) {
		check(filter.Err)
		for _, each := range filter.Described {
			one := rule{each.Principal, each.Host, each.Type.String(), each.Name,
				each.Pattern.String(), each.Operation.String(), each.Permission == kmsg.ACLPermissionTypeDeny}
			if !seen[one] {
				seen[one] = true
				found = append(found, one)
			}
		}
	}
	return found
}

func removeRule(ctx context.Context, admin *kadm.Client, asked question) any {
	removed := 0
	for _, filter := range must(admin.DeleteACLs(ctx, builder(asked.Rule))) {
		check(filter.Err)
		removed += len(filter.Deleted)
	}
	return removed
}

func thereAndBack(ctx context.Context, args []string, asked question) any {
	client := must(kgo.NewClient(append(options(args), kgo.ConsumeTopics(asked.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...))
	defer client.Close()
	record := &kgo.Record{Topic: asked.Topic, Value: []byte(asked.Value)}
	check(client.ProduceSync(ctx, record).FirstErr())
	fetches := client.PollFetches(ctx)
	check(fetches.Err())
	return string(fetches.Records()[0].Value)
}

func answer(args []string, admin *kadm.Client, asked question) (told map[string]any) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	defer func() {
		if failure := recover(); failure != nil {
			text := fmt.Sprint(failure)
			var known *kerr.Error
			if err, is := failure.(error); is && errors.As(err, &known) {
				text = known.Message
			}
			told = map[string]any{"error": text}
		}
	}()
	if asked.Op == "there_and_back" {
		return map[string]any{"is": thereAndBack(ctx, args, asked)}
	}
	does := map[string]func(context.Context, *kadm.Client, question) any{
		"set_quotas": setQuotas, "quotas": quotas,
		"set_password": setPassword, "passwords": passwords,
		"add_rule": addRule, "rules": rules, "remove_rule": removeRule,
	}[asked.Op]
	return map[string]any{"is": does(ctx, admin, asked)}
}

func main() {
	args := os.Args[1:]
	client := must(kgo.NewClient(options(args)...))
	defer client.Close()
	admin := kadm.NewClient(client)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked question
		check(json.Unmarshal(lines.Bytes(), &asked))
		fmt.Println(string(must(json.Marshal(answer(args, admin, asked)))))
	}
}
