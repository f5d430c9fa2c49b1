package workers

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-social/weir/jobs"
)

// Webhook is where alerts are sent. Its address is a secret, because anyone who
// knows it can post there. No error of this package contains it.
type Webhook struct {
	url    string
	format string
	client *http.Client
}

// The formats of a webhook's messages.
const (
	FormatSlack   = "slack"
	FormatDiscord = "discord"
	FormatJSON    = "json"
)

// sendWithin bounds a request: a hanging webhook blocks one worker of the alerts
// queue for this long, and no other job.
const sendWithin = 10 * time.Second

// NewWebhook validates an address. Without a format, the host decides.
func NewWebhook(address, format string) (*Webhook, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errors.New("the webhook's address is not a URL: expected https://host/path")
	}
	switch host := strings.ToLower(u.Hostname()); {
	case format != "":
	case host == "hooks.slack.com":
		format = FormatSlack
	case host == "discord.com" || host == "discordapp.com":
		format = FormatDiscord
	default:
		format = FormatJSON
	}
	if format != FormatSlack && format != FormatDiscord && format != FormatJSON {
		return nil, fmt.Errorf("the webhook's format is %q: expected %s, %s or %s", format, FormatSlack, FormatDiscord, FormatJSON)
	}
	client := &http.Client{Timeout: sendWithin, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &Webhook{url: address, format: format, client: client}, nil
}

// body encodes a message in the webhook's format. It escapes Slack's and
// Discord's markup, which error texts from a stream could contain.
func (h *Webhook) body(a jobs.SendAlert) ([]byte, error) {
	switch h.format {
	case FormatSlack:
		return json.Marshal(map[string]any{"text": strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(sentences(a))})
	case FormatDiscord:
		const most = 2000 // characters; Discord refuses more
		content := []rune(sentences(a))
		return json.Marshal(map[string]any{
			"content": string(content[:min(len(content), most)]), "allowed_mentions": map[string]any{"parse": []string{}},
		})
	}
	return json.Marshal(a)
}

// sentences returns a message as text for people.
func sentences(a jobs.SendAlert) string {
	at := func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
	if a.Resolved {
		return fmt.Sprintf("Resolved: %s (%s). It was: %s. From %s to %s.", a.Name, a.Severity, a.Message, at(a.Since), at(a.At))
	}
	return fmt.Sprintf("%s: %s. Now: %s. Since %s. Hint at: %s.", strings.ToUpper(a.Severity), a.Name, a.Message, at(a.Since), a.Hint)
}
