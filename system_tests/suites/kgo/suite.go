// Package suite pins the version of franz-go whose own tests are run.
package suite

import _ "github.com/twmb/franz-go/pkg/kgo"
